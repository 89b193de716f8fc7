#include "cli/planning/simulate_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "cli/input/device_offer.h"
#include "cli/planning/allocator_text.h"
#include "cli/planning/run_place.h"
#include "cli/planning/step_names.h"
#include "cli/terminal/text.h"
#include "graph/allocator/caching_allocator.h"
#include "graph/base/byte_size.h"
#include "graph/run/peak_layout.h"
#include "graph/run/run_on_device.h"
#include "graph/run/training_run.h"

namespace acplan::cli {
namespace {

using graph::AllocatorEvent;
using graph::LivedStep;
using graph::RunMoment;
using graph::RunOutcome;
using graph::Trace;
using graph::TrainingRun;
using nlohmann::ordered_json;

// The most lines beside holes that are printed.
constexpr size_t kMostLines = 5;

struct RunAnswer {
  const Trace* trace;
  const LivedStep* step;
  const AllocatorQuestion* question;
  TrainingRun run;
  RunOutcome outcome;
  graph::PeakLayout peak;
  std::optional<graph::LeastDevice> least = {};

  StepInRun place() const { return {.trace = trace, .step = step}; }
};

// The bytes of the holes beside the blocks that a line makes.
struct LineOfHoles {
  std::string name;
  int64_t bytes = 0;
};

std::string PlaceText(const RunAnswer& answer, int64_t event) {
  return PlaceInRunText(answer.place(), answer.run, event);
}

ordered_json PlaceJson(const RunAnswer& answer, int64_t event) {
  return PlaceInRunJson(answer.place(), answer.run, event);
}

// The most bytes first.
std::vector<LineOfHoles> LinesOfHoles(const RunAnswer& answer) {
  std::map<std::string, int64_t> bytes;
  for (const graph::Hole& hole : answer.peak.holes) {
    std::vector<std::string> names;
    for (const graph::StorageId storage : hole.neighbours) {
      if (storage != graph::kNone)
        names.push_back(MakerOf(*answer.trace, storage));
    }
    if (names.size() == 2 && names[0] == names[1]) names.pop_back();
    for (const std::string& name : names) bytes[name] += hole.bytes;
  }
  std::vector<LineOfHoles> lines;
  for (auto& [name, sum] : bytes) lines.push_back({.name = name, .bytes = sum});
  std::ranges::stable_sort(lines, std::ranges::greater(), &LineOfHoles::bytes);
  return lines;
}

ordered_json ReclaimsJson(const RunAnswer& answer) {
  ordered_json reclaims = ordered_json::array();
  for (const graph::Reclaim& reclaim : answer.outcome.replay.reclaims) {
    ordered_json entry = PlaceJson(answer, reclaim.event);
    entry["collected_bytes"] = reclaim.collected_bytes;
    entry["oversize_bytes"] = reclaim.oversize_bytes;
    entry["released_bytes"] = reclaim.released_bytes;
    entry["retry"] = reclaim.is_retry;
    reclaims.push_back(std::move(entry));
  }
  return reclaims;
}

ordered_json FailureJson(const RunAnswer& answer) {
  if (!answer.outcome.replay.failure) return nullptr;
  const graph::ReplayFailure& failure = *answer.outcome.replay.failure;
  ordered_json json = PlaceJson(answer, failure.event);
  json["bytes"] = failure.bytes;
  json["allocated_bytes"] = failure.allocated_bytes;
  json["reserved_bytes"] = failure.reserved_bytes;
  json["free_bytes"] = failure.free_bytes;
  return json;
}

ordered_json PeakJson(const RunAnswer& answer) {
  if (answer.peak.event < 0) return nullptr;
  ordered_json json = PlaceJson(answer, answer.peak.event);
  json["allocated_bytes"] = answer.peak.allocated_bytes;
  json["reserved_bytes"] = answer.peak.reserved_bytes;
  json["hole_bytes"] = answer.peak.HoleBytes();
  json["beside_holes"] = ordered_json::array();
  for (const LineOfHoles& line : LinesOfHoles(answer)) {
    json["beside_holes"].push_back(
        {{"source", line.name}, {"hole_bytes", line.bytes}});
  }
  json["segments"] = SegmentsJson(answer.peak.segments);
  return json;
}

ordered_json ToJson(const RunAnswer& answer) {
  const graph::AllocatorCounts& counts = answer.outcome.replay.counts;
  ordered_json json;
  json["torch_version"] = TorchVersionText(answer.question->config);
  json["device_bytes"] = answer.question->device_bytes
                             ? ordered_json(*answer.question->device_bytes)
                             : nullptr;
  if (answer.question->offer) json["gpu"] = OfferJson(*answer.question->offer);
  json["allocated_bytes"] = counts.peak_allocated_bytes;
  json["reserved_bytes"] = counts.peak_reserved_bytes;
  if (answer.question->wants_least_device) {
    json["least_device_bytes"] =
        answer.least ? ordered_json(answer.least->bytes) : nullptr;
    if (answer.least) json["least_device_proven"] = answer.least->is_least;
  }
  json["iterations"] = answer.outcome.iterations;
  json["period"] = answer.outcome.period;
  json["retries"] = counts.retries;
  json["retries_of_period"] = answer.outcome.period_retries;
  json["reclaims"] = ReclaimsJson(answer);
  json["failure"] = FailureJson(answer);
  json["peak"] = PeakJson(answer);
  return json;
}

std::string IterationsText(const RunAnswer& answer) {
  const RunOutcome& outcome = answer.outcome;
  if (!outcome.Fits()) return "";
  if (outcome.period == 0) {
    return fmt::format(
        "{} iterations, none of which left memory as an earlier one did: later "
        "ones may need more\n",
        outcome.iterations);
  }
  const std::string last =
      outcome.period == 1 ? "one" : fmt::format("{}", outcome.period);
  return fmt::format(
      "{} iterations; later ones repeat the last {}{}\n", outcome.iterations,
      last,
      outcome.period_retries == 0
          ? ""
          : fmt::format(", with {} {}: each waits for the device",
                        outcome.period_retries,
                        outcome.period_retries == 1 ? "retry" : "retries"));
}

std::string HolesText(const RunAnswer& answer) {
  const int64_t holes = answer.peak.HoleBytes();
  if (holes == 0) return "";
  std::string text =
      fmt::format("{} of it is free but cannot be released, beside blocks of\n",
                  graph::FormatBytes(holes));
  const std::vector<LineOfHoles> lines = LinesOfHoles(answer);
  for (size_t k = 0; k < std::min(lines.size(), kMostLines); ++k) {
    text += fmt::format("  {}: {}\n", lines[k].name,
                        graph::FormatBytes(lines[k].bytes));
  }
  if (lines.size() > kMostLines) {
    text += fmt::format("  and {} more\n", lines.size() - kMostLines);
  }
  return text;
}

std::string ToText(const RunAnswer& answer, const Terminal& terminal) {
  const graph::Replay& replay = answer.outcome.replay;
  std::string text = AllocatorText(*answer.question) + ":\n";
  if (answer.question->offer) text += OfferLine(*answer.question->offer);
  text += PeaksText(replay.counts);
  if (answer.question->wants_least_device) {
    text += LeastDeviceText(answer.least);
  }
  text += ReclaimsText(replay) + IterationsText(answer);
  if (replay.failure) {
    text += FailureText(*replay.failure,
                        PlaceText(answer, replay.failure->event), terminal);
  }
  if (answer.peak.event < 0) return text;
  return text +
         fmt::format("\n{} at {}:\n",
                     replay.failure ? "At the failure,"
                                    : "At the peak of reserved bytes,",
                     PlaceText(answer, answer.peak.event)) +
         SegmentsTable(answer.peak.segments, terminal) + HolesText(answer);
}

std::string TimelineRow(const RunAnswer& answer, size_t index,
                        const graph::CachingAllocator& allocator,
                        graph::BlockId block) {
  const AllocatorEvent& event = answer.run.events.events[index];
  const RunMoment& moment = answer.run.moments[index];
  const auto* step = StepAt(answer.place(), moment);
  const graph::AllocatorCounts& counts = allocator.counts();
  return fmt::format(
      "{},{},{},{},{},{},{},{},{},{},{},{}\n", index, moment.iteration + 1,
      moment.microbatch + 1, step == nullptr ? -1 : IndexOf(moment.step),
      step == nullptr ? "" : CsvField(NameOf(*answer.trace, *step)),
      KindText(event.kind), event.block, event.bytes,
      PlaceFields(allocator, block), counts.allocated_bytes,
      counts.reserved_bytes, counts.retries);
}

}  // namespace

RunTexts SimulateRun(const Trace& trace, const LivedStep& step,
                     const AllocatorQuestion& question, bool wants_timeline,
                     const Terminal& terminal) {
  RunAnswer answer{
      .trace = &trace,
      .step = &step,
      .question = &question,
      .run = graph::MakeTrainingRun(trace, step, question.run_options()),
      .outcome = {},
      .peak = {}};
  RunTexts texts;
  texts.timeline =
      "event,iteration,microbatch,step,operator,kind,id,bytes,segment,offset,"
      "allocated_bytes,reserved_bytes,retries\n";
  answer.outcome = graph::RunOnDevice(
      answer.run, question.config, question.device(),
      [&](size_t event, const graph::CachingAllocator& allocator,
          graph::BlockId block) {
        if (!wants_timeline) return;
        texts.timeline += TimelineRow(answer, event, allocator, block);
      });
  answer.peak = graph::LayoutAtPeak(answer.run, question.config,
                                    question.device(), answer.outcome);
  if (question.wants_least_device) {
    answer.least = graph::FindLeastDevice(answer.run, question.config);
  }
  texts.json = ToJson(answer);
  texts.text = ToText(answer, terminal);
  return texts;
}

}  // namespace acplan::cli
