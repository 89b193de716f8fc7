#include <fmt/format.h>

#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/output_files.h"
#include "cli/lengths/length_flags.h"
#include "cli/lengths/planned_batches.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/allocator_json.h"
#include "cli/planning/allocator_text.h"
#include "cli/planning/run_place.h"
#include "cli/planning/step_names.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/json_text.h"
#include "graph/run/peak_layout.h"
#include "graph/run/run_on_device.h"
#include "graph/trace/simulation.h"
#include "problems/plan/length_steps.h"

namespace acplan::cli {
namespace {

using nlohmann::ordered_json;

struct LengthsSimulateFlags {
  LengthFlags lengths;
  std::string plan;
  AllocatorFlags allocator;
  std::string timeline;
  std::string output;
  bool json = false;
};

// A run of the batches, and the way in which it ended.
struct LengthsAnswer {
  std::unique_ptr<const PlannedBatches> batches;
  AllocatorQuestion question;
  graph::TrainingRun run;
  graph::RunOutcome outcome;
  graph::PeakLayout peak;
  std::optional<graph::LeastDevice> least = {};
};

std::string PlaceText(const LengthsAnswer& answer, int64_t event) {
  return PlaceInRunText(answer.batches->run_steps, answer.run, event);
}

ordered_json PlaceJson(const LengthsAnswer& answer, int64_t event) {
  return PlaceInRunJson(answer.batches->run_steps, answer.run, event);
}

ordered_json ToJson(const LengthsAnswer& answer) {
  const graph::Replay& replay = answer.outcome.replay;
  ordered_json json =
      AllocatorJson(answer.question, replay.counts, answer.least);
  const PlannedBatches& batches = *answer.batches;
  json["batches"] = batches.problem.order.size();
  json["batches_ended"] = answer.outcome.iterations;
  json["recompute_ms"] =
      problems::MeanRecomputeMs(batches.problem, batches.steps);
  json["failure"] = FailureJson(
      replay.failure, [&](int64_t event) { return PlaceJson(answer, event); });
  json["peak"] = nullptr;
  if (answer.peak.event >= 0) {
    ordered_json peak = PlaceJson(answer, answer.peak.event);
    peak["allocated_bytes"] = answer.peak.allocated_bytes;
    peak["reserved_bytes"] = answer.peak.reserved_bytes;
    peak["hole_bytes"] = answer.peak.HoleBytes();
    peak["segments"] = SegmentsJson(answer.peak.segments);
    json["peak"] = std::move(peak);
  }
  json["lengths"] = ordered_json::array();
  for (const LengthRow& row : RowsOf(batches)) {
    json["lengths"].push_back({{"length", row.length},
                               {"batches", row.batches},
                               {"evaluations", row.evaluations},
                               {"live_bytes", row.live_bytes},
                               {"recompute_ms", row.recompute_ms}});
  }
  return json;
}

std::string LengthsTable(const LengthsAnswer& answer,
                         const Terminal& terminal) {
  using enum Table::Align;
  Table table({kRight, kRight, kRight, kRight, kRight});
  table.AddRow(
      {"length", "batches", "evaluations", "live bytes", "recomputed"});
  for (const LengthRow& row : RowsOf(*answer.batches)) {
    table.AddRow({FormatCount(row.length), FormatCount(row.batches),
                  FormatCount(row.evaluations),
                  row.batches > 0 ? graph::FormatBytes(row.live_bytes) : "-",
                  row.batches > 0 ? FormatMs(row.recompute_ms) : "-"});
  }
  return table.ToString(terminal);
}

std::string ToText(const LengthsAnswer& answer, const Terminal& terminal) {
  const graph::Replay& replay = answer.outcome.replay;
  const PlannedBatches& batches = *answer.batches;
  std::string text = fmt::format("{}\n{}:\n", BatchesText(batches, terminal),
                                 AllocatorText(answer.question));
  text += PeaksText(answer.question, replay.counts, answer.least);
  text += ReclaimsText(replay);
  if (replay.failure) {
    text += FailureText(*replay.failure,
                        PlaceText(answer, replay.failure->event), terminal);
  }
  if (batches.table) {
    text += fmt::format(
        "recomputed by a batch of training on average: {}\n",
        FormatMs(problems::MeanRecomputeMs(batches.problem, batches.steps)));
  }
  if (answer.peak.event >= 0) {
    text += fmt::format(
        "{} {}\n", replay.failure ? "at the failure:" : "most is reserved at",
        PlaceText(answer, answer.peak.event));
  }
  return text + "\n" + LengthsTable(answer, terminal);
}

std::string TimelineRow(const LengthsAnswer& answer, size_t index,
                        const graph::CachingAllocator& allocator,
                        graph::BlockId block) {
  const graph::AllocatorEvent& event = answer.run.events.events[index];
  const graph::RunMoment& moment = answer.run.moments[index];
  const PlannedBatches& batches = *answer.batches;
  const auto* step =
      moment.iteration < 0 ? nullptr : StepAt(batches.run_steps, moment);
  return fmt::format(
      "{},{},{},{},{},{},{},{},{},{},{}\n", index, moment.iteration + 1,
      moment.iteration < 0
          ? 0
          : batches.problem.order[static_cast<size_t>(moment.iteration)].length,
      step == nullptr
          ? ""
          : CsvField(NameOf(batches.run_steps.TraceOf(moment), *step)),
      EventKindText(event.kind), event.block, event.bytes,
      PlaceFields(allocator, block), allocator.counts().allocated_bytes,
      allocator.counts().reserved_bytes, allocator.counts().retries);
}

int RunLengthsSimulate(const LengthsSimulateFlags& flags,
                       const Terminal& terminal) {
  LengthsAnswer answer;
  answer.question = flags.allocator.Question();
  answer.batches = ReadPlannedBatches(flags.lengths, flags.plan);
  RequireDdp(flags.allocator, answer.batches->problem);
  answer.run = problems::RunOf(answer.batches->problem, answer.batches->steps,
                               answer.question.run_options());
  std::string timeline =
      "event,batch,length,operator,kind,id,bytes,segment,offset,"
      "allocated_bytes,reserved_bytes,retries\n";
  answer.outcome = graph::RunOnDevice(
      answer.run, answer.question.config, answer.question.device(),
      [&](size_t event, const graph::CachingAllocator& allocator,
          graph::BlockId block) {
        if (flags.timeline.empty()) return;
        timeline += TimelineRow(answer, event, allocator, block);
      });
  answer.peak = graph::LayoutAtPeak(answer.run, answer.question.config,
                                    answer.question.device(), answer.outcome);
  if (answer.question.wants_least_device) {
    answer.least = graph::FindLeastDevice(answer.run, answer.question.config);
  }
  const std::string json = graph::IndentedText(ToJson(answer));
  std::vector<graph::NamedText> files;
  if (!flags.timeline.empty()) files.push_back({flags.timeline, timeline});
  if (!flags.output.empty()) files.push_back({flags.output, json});
  graph::WriteFiles(files);
  terminal.Print(flags.json ? json
                            : BrokenLines(ToText(answer, terminal), terminal));
  return kExitOk;
}

}  // namespace

Command AddLengthsSimulateCommand(CLI::App& program) {
  auto flags = std::make_shared<LengthsSimulateFlags>();
  CLI::App* app = program.add_subcommand(
      "simulate", "Simulate PyTorch's allocator on batches of several lengths");
  flags->lengths.AddTo(*app);
  AddPlanOfBatches(*app, flags->plan);
  flags->allocator.AddTo(
      *app,
      "the device memory that PyTorch's allocator may use (default: no limit)");
  flags->allocator.AddOptimizerStateTo(*app, "update");
  flags->allocator.AddRunTo(*app);
  flags->allocator.AddDdpTo(*app);
  flags->allocator.AddWithoutLeastTo(*app);
  MarkAsOutput(app->add_option("--timeline", flags->timeline,
                               "write a CSV of the bytes in use after each "
                               "event on the allocator")
                   ->type_name("FILE"));
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write JSON here");
  app->footer(
      "Example:\n  acplan lengths simulate 128=short.json 512=long.json "
      "--lengths lengths.txt --device-memory 8GiB\n"
      "Exit status: 0 simulated, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunLengthsSimulate(*flags, terminal);
          }};
}

}  // namespace acplan::cli
