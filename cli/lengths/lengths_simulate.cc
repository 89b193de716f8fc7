#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/output_files.h"
#include "cli/input/plan_input.h"
#include "cli/lengths/length_flags.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/allocator_json.h"
#include "cli/planning/allocator_text.h"
#include "cli/planning/step_names.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/run/peak_layout.h"
#include "graph/run/run_on_device.h"
#include "graph/trace/simulation.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::cli {
namespace {

using nlohmann::ordered_json;
using problems::LengthProblem;

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
  LengthProblem problem;
  std::optional<problems::PlanTable> table;
  problems::LengthSteps steps;
  std::vector<graph::RunShape> shapes;
  graph::TrainingRun run;
  AllocatorQuestion question;
  graph::RunOutcome outcome;
  graph::PeakLayout peak;
  std::optional<graph::LeastDevice> least = {};
};

const graph::Simulation::Step* StepAt(const LengthsAnswer& answer,
                                      const graph::RunMoment& moment) {
  const auto& steps =
      answer.shapes[static_cast<size_t>(moment.shape)].step->steps;
  const bool is_one =
      moment.step != graph::kNone && moment.step < steps.end_id();
  return is_one ? &steps[moment.step] : nullptr;
}

const graph::Trace& TraceOf(const LengthsAnswer& answer,
                            const graph::RunMoment& moment) {
  return *answer.shapes[static_cast<size_t>(moment.shape)].trace;
}

std::string BatchText(const LengthsAnswer& answer, int32_t batch) {
  const graph::LengthStep& step =
      answer.problem.order[static_cast<size_t>(batch)];
  return fmt::format("batch {}{} of length {}", batch + 1,
                     step.is_evaluation ? ", an evaluation" : "", step.length);
}

std::string PlaceText(const LengthsAnswer& answer, int64_t event) {
  const graph::RunMoment& moment =
      answer.run.moments[static_cast<size_t>(event)];
  if (moment.iteration < 0) return "the model, as it is put on the device";
  const std::string batch = BatchText(answer, moment.iteration);
  if (const auto* step = StepAt(answer, moment)) {
    return fmt::format("{}: {}", batch,
                       StepText(TraceOf(answer, moment), *step));
  }
  return fmt::format("the {} of {}",
                     moment.step == graph::kNone ? "begin" : "end", batch);
}

ordered_json PlaceJson(const LengthsAnswer& answer, int64_t event) {
  const graph::RunMoment& moment =
      answer.run.moments[static_cast<size_t>(event)];
  ordered_json json = {{"event", event}, {"batch", moment.iteration + 1}};
  if (moment.iteration < 0) return json;
  const graph::LengthStep& batch =
      answer.problem.order[static_cast<size_t>(moment.iteration)];
  json["length"] = batch.length;
  json["evaluation"] = batch.is_evaluation;
  if (const auto* step = StepAt(answer, moment)) {
    const graph::Trace& trace = TraceOf(answer, moment);
    json["operator"] = NameOf(trace, *step);
    json["phase"] = PhaseOf(trace, *step);
    json["module"] = ModuleOf(trace, *step);
    json["source"] = graph::SourceOf(trace, step->op);
  }
  return json;
}

// A row of the table of lengths.
struct LengthRow {
  int64_t length = 0;
  int64_t batches = 0;
  int64_t evaluations = 0;
  int64_t live_bytes = 0;  // of a batch's step, at most
  double recompute_ms = 0;
};

std::vector<LengthRow> RowsOf(const LengthsAnswer& answer) {
  std::vector<LengthRow> rows;
  const LengthProblem& problem = answer.problem;
  for (size_t k = 0; k < problem.lengths.size(); ++k) {
    LengthRow row{.length = problem.lengths[k].length,
                  .batches = problem.counts[k]};
    row.evaluations = std::ranges::count(
        problem.order,
        graph::LengthStep{.length = row.length, .is_evaluation = true});
    const std::vector<problems::PlannedModule> none;
    const graph::RunShape& shape = answer.shapes[k];
    const graph::Simulation simulation = graph::Simulate(
        *shape.trace,
        problems::CheckpointedModules(
            *shape.trace, answer.table && row.batches > 0
                              ? answer.table->EntryFor(row.length).plan.modules
                              : none));
    row.live_bytes = simulation.peak_bytes;
    row.recompute_ms = simulation.recompute_ms;
    rows.push_back(row);
  }
  return rows;
}

ordered_json ToJson(const LengthsAnswer& answer) {
  const graph::Replay& replay = answer.outcome.replay;
  ordered_json json =
      AllocatorJson(answer.question, replay.counts, answer.least);
  json["batches"] = answer.problem.order.size();
  json["batches_ended"] = answer.outcome.iterations;
  json["recompute_ms"] =
      problems::MeanRecomputeMs(answer.problem, answer.steps);
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
  for (const LengthRow& row : RowsOf(answer)) {
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
  for (const LengthRow& row : RowsOf(answer)) {
    table.AddRow({FormatCount(row.length), FormatCount(row.batches),
                  FormatCount(row.evaluations),
                  row.batches > 0 ? graph::FormatBytes(row.live_bytes) : "-",
                  row.batches > 0 ? FormatMs(row.recompute_ms) : "-"});
  }
  return table.ToString(terminal);
}

std::string ToText(const LengthsAnswer& answer, const Terminal& terminal) {
  const graph::Replay& replay = answer.outcome.replay;
  std::string text = fmt::format(
      "{}, {} batches of {} lengths\n{}:\n",
      terminal.Bold(
          graph::OneLine(answer.problem.traced.front().trace.model.name)),
      FormatCount(std::ssize(answer.problem.order)),
      FormatCount(std::ssize(answer.problem.lengths)),
      AllocatorText(answer.question));
  text += PeaksText(answer.question, replay.counts, answer.least);
  text += ReclaimsText(replay);
  if (replay.failure) {
    text += FailureText(*replay.failure,
                        PlaceText(answer, replay.failure->event), terminal);
  }
  if (answer.table) {
    text += fmt::format(
        "recomputed by a batch of training on average: {}\n",
        FormatMs(problems::MeanRecomputeMs(answer.problem, answer.steps)));
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
  const auto* step = moment.iteration < 0 ? nullptr : StepAt(answer, moment);
  return fmt::format(
      "{},{},{},{},{},{},{},{},{},{},{}\n", index, moment.iteration + 1,
      moment.iteration < 0
          ? 0
          : answer.problem.order[static_cast<size_t>(moment.iteration)].length,
      step == nullptr ? "" : CsvField(NameOf(TraceOf(answer, moment), *step)),
      EventKindText(event.kind), event.block, event.bytes,
      PlaceFields(allocator, block), allocator.counts().allocated_bytes,
      allocator.counts().reserved_bytes, allocator.counts().retries);
}

problems::LengthSteps StepsUnder(const LengthsAnswer& answer,
                                 const std::string& path) {
  const std::vector<problems::PlannedModule> none;
  try {
    return problems::LiveSteps(
        answer.problem,
        [&](size_t k) -> const std::vector<problems::PlannedModule>& {
          return answer.table
                     ? answer.table->EntryFor(answer.problem.lengths[k].length)
                           .plan.modules
                     : none;
        });
  } catch (const InputError& error) {
    if (path.empty()) throw;
    throw NamingFile(error, path);
  }
}

int RunLengthsSimulate(const LengthsSimulateFlags& flags,
                       const Terminal& terminal) {
  LengthsAnswer answer;
  answer.question = flags.allocator.Question();
  answer.problem = flags.lengths.Read();
  if (!flags.plan.empty()) {
    answer.table = ReadTableOrPlan(flags.plan, answer.problem);
  }
  answer.steps = StepsUnder(answer, flags.plan);
  answer.shapes = answer.steps.Shapes(answer.problem);
  answer.run =
      problems::RunOf(answer.problem, answer.steps,
                      answer.question.makes_state_first.value_or(false));
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
  app->add_option("--plan", flags->plan,
                  "table of plans, or one plan for all lengths (default: no "
                  "checkpointing)")
      ->type_name("FILE");
  flags->allocator.AddTo(
      *app,
      "the device memory that PyTorch's allocator may use (default: no limit)");
  flags->allocator.AddOptimizerStateTo(*app, "update");
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
