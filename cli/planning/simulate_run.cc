#include "cli/planning/simulate_run.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "cli/planning/allocator_json.h"
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

struct RunAnswer {
  RunSteps steps;
  const AllocatorQuestion* question;
  TrainingRun run;
  RunOutcome outcome;
  graph::PeakLayout peak;
  std::optional<graph::LeastDevice> least = {};
};

std::string PlaceText(const RunAnswer& answer, int64_t event) {
  return PlaceInRunText(answer.steps, answer.run, event);
}

ordered_json PlaceJson(const RunAnswer& answer, int64_t event) {
  return PlaceInRunJson(answer.steps, answer.run, event);
}

std::vector<LineHoles> LinesOfHoles(const RunAnswer& answer) {
  std::vector<HoleBesideLines> holes;
  for (const graph::Hole& hole : answer.peak.holes) {
    holes.push_back({.bytes = hole.bytes, .lines = {}});
    for (const int64_t event : hole.neighbours) {
      if (event < 0) continue;
      holes.back().lines.push_back(MakerOf(answer.steps, answer.run, event));
    }
  }
  return HolesByLine(holes);
}

ordered_json PeakJson(const RunAnswer& answer) {
  if (answer.peak.event < 0) return nullptr;
  ordered_json json = PlaceJson(answer, answer.peak.event);
  json["allocated_bytes"] = answer.peak.allocated_bytes;
  json["reserved_bytes"] = answer.peak.reserved_bytes;
  json["hole_bytes"] = answer.peak.HoleBytes();
  json["beside_holes"] = BesideHolesJson(LinesOfHoles(answer));
  json["segments"] = SegmentsJson(answer.peak.segments);
  return json;
}

ordered_json ToJson(const RunAnswer& answer) {
  const graph::Replay& replay = answer.outcome.replay;
  const EventPlace place_of = [&](int64_t event) {
    return PlaceJson(answer, event);
  };
  ordered_json json =
      AllocatorJson(*answer.question, replay.counts, answer.least);
  json["iterations"] = answer.outcome.iterations;
  json["period"] = answer.outcome.period;
  json["retries_of_period"] = answer.outcome.period_retries;
  json["reclaims"] = ReclaimsJson(replay.reclaims, place_of);
  json["failure"] = FailureJson(replay.failure, place_of);
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

std::string ToText(const RunAnswer& answer, const Terminal& terminal) {
  const graph::Replay& replay = answer.outcome.replay;
  std::string text = AllocatorText(*answer.question) + ":\n";
  text += PeaksText(*answer.question, replay.counts, answer.least);
  text += ReclaimsText(replay) + IterationsText(answer);
  if (replay.failure) {
    text += FailureText(*replay.failure,
                        PlaceText(answer, replay.failure->event), terminal);
  }
  if (answer.peak.event < 0) return text;
  return text +
         PeakTitle(replay.failure.has_value(),
                   PlaceText(answer, answer.peak.event)) +
         SegmentsTable(answer.peak.segments, terminal) +
         HolesText(answer.peak.HoleBytes(), LinesOfHoles(answer));
}

std::string TimelineRow(const RunAnswer& answer, size_t index,
                        const graph::CachingAllocator& allocator,
                        graph::BlockId block) {
  const AllocatorEvent& event = answer.run.events.events[index];
  const RunMoment& moment = answer.run.moments[index];
  const auto* step = StepAt(answer.steps, moment);
  const graph::AllocatorCounts& counts = allocator.counts();
  return fmt::format(
      "{},{},{},{},{},{},{},{},{},{},{},{},{}\n", index, moment.iteration + 1,
      moment.microbatch + 1, step == nullptr ? -1 : IndexOf(moment.step),
      step == nullptr ? ""
                      : CsvField(NameOf(answer.steps.TraceOf(moment), *step)),
      EventKindText(event.kind), event.block, event.bytes, event.stream,
      PlaceFields(allocator, block), counts.allocated_bytes,
      counts.reserved_bytes, counts.retries);
}

}  // namespace

RunTexts SimulateRun(const Trace& trace, const LivedStep& step,
                     const AllocatorQuestion& question, bool wants_timeline,
                     const Terminal& terminal) {
  RunAnswer answer{
      .steps = {.shapes = {{.trace = &trace, .step = &step}}},
      .question = &question,
      .run = graph::MakeTrainingRun(trace, step, question.run_options()),
      .outcome = {},
      .peak = {}};
  RunTexts texts;
  texts.timeline =
      "event,iteration,microbatch,step,operator,kind,id,bytes,stream,segment,"
      "offset,allocated_bytes,reserved_bytes,retries\n";
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
