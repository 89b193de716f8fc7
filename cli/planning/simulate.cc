#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/plan_input.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/simulate_events.h"
#include "cli/planning/simulate_run.h"
#include "cli/planning/simulate_snapshot.h"
#include "cli/planning/step_drawing.h"
#include "cli/planning/step_names.h"
#include "cli/planning/streams_text.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/run/data_parallel.h"
#include "graph/trace/host_times.h"
#include "graph/trace/link_time.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::cli {

using graph::Simulation;
using graph::Trace;

namespace {

struct SimulateFlags {
  std::string trace;
  std::string plan;
  std::string timeline;
  std::string output;
  bool json = false;
  std::string events;
  std::string snapshot;
  std::optional<int> device;
  AllocatorFlags allocator;
};

struct SimulationAnswer {
  const Trace* trace;
  Simulation baseline;
  std::optional<Simulation> under_plan;
  size_t units = 0;
  // They are there if the trace has the host's times.
  std::optional<graph::StepMs> baseline_times = {}, planned_times = {};
  // They are there if the trace has streams.
  std::optional<graph::StreamTimes> baseline_streams = {}, planned_streams = {};
  // The time that the planned step waits for its link, if the plan names one.
  std::optional<double> stall_ms = {};
  // The run on PyTorch's allocator, if one is asked for.
  std::optional<RunTexts> run = {};

  const Simulation& last() const { return under_plan ? *under_plan : baseline; }
};

int64_t RunAgain(const Simulation& simulation) {
  return std::ranges::count_if(simulation.steps, [](const auto& step) {
    return step.redone != graph::kNone;
  });
}

nlohmann::ordered_json ToJson(const Trace& trace,
                              const Simulation& simulation) {
  nlohmann::ordered_json json;
  json["peak_bytes"] = simulation.peak_bytes;
  if (simulation.peak_step != graph::kNone) {
    const Simulation::Step& step = simulation.steps[simulation.peak_step];
    json["peak"] = {{"step", simulation.peak_step},
                    {"operator", NameOf(trace, step)},
                    {"phase", PhaseOf(trace, step)},
                    {"module", ModuleOf(trace, step)},
                    {"source", graph::SourceOf(trace, step.op)}};
  }
  json["by_category"] = nlohmann::ordered_json::object();
  for (size_t c = 0; c < graph::kStorageCategories; ++c) {
    json["by_category"][ToString(static_cast<graph::StorageCategory>(c))] =
        simulation.peak_by_category[c];
  }
  json["operators"] = simulation.steps.size();
  json["recomputed_operators"] = RunAgain(simulation);
  json["recompute_ms"] = simulation.recompute_ms;
  return json;
}

nlohmann::ordered_json ToJson(const graph::StepMs& times) {
  return {{"ms", times.host},
          {"device_ms", times.device},
          {"step_ms", times.Longer()}};
}

std::string ToJson(const SimulationAnswer& answer) {
  nlohmann::ordered_json json;
  json["model"] = answer.trace->model.name;
  if (answer.trace->peak_bytes) {
    json["measured_peak_bytes"] = *answer.trace->peak_bytes;
  }
  json["baseline"] = ToJson(*answer.trace, answer.baseline);
  if (answer.baseline_times) {
    json["baseline"]["host"] = ToJson(*answer.baseline_times);
  }
  if (answer.baseline_streams) {
    json["baseline"]["streams"] = cli::ToJson(*answer.baseline_streams);
  }
  if (answer.under_plan) {
    json["units"] = answer.units;
    json["planned"] = ToJson(*answer.trace, *answer.under_plan);
    if (answer.planned_times) {
      json["planned"]["host"] = ToJson(*answer.planned_times);
    }
    if (answer.planned_streams) {
      json["planned"]["streams"] = cli::ToJson(*answer.planned_streams);
    }
    const graph::OffloadUse& offload = answer.under_plan->offload;
    if (!offload.storages.empty()) {
      json["planned"]["offload"] = {{"storages", offload.storages.size()},
                                    {"sent_bytes", offload.sent_bytes},
                                    {"host_bytes", offload.host_peak_bytes}};
      if (answer.stall_ms) {
        json["planned"]["offload"]["stall_ms"] = *answer.stall_ms;
      }
    }
  }
  if (answer.run) json["run"] = answer.run->json;
  return graph::IndentedText(json);
}

std::string ToCsv(const Trace& trace, const Simulation& simulation) {
  std::string csv = "step,operator,name,phase,module,live_bytes\n";
  for (const graph::StepId k : simulation.steps.ids()) {
    const Simulation::Step& step = simulation.steps[k];
    csv +=
        fmt::format("{},{},{},{},{},{}\n", k, step.op,
                    CsvField(NameOf(trace, step)), PhaseOf(trace, step),
                    CsvField(ModuleOf(trace, step)), simulation.live_bytes[k]);
  }
  return csv;
}

std::string PeakText(const Trace& trace, const Simulation& simulation) {
  return simulation.peak_step == graph::kNone
             ? ""
             : StepText(trace, simulation.steps[simulation.peak_step]);
}

// Returns the line on the queues of a step; "" if the host's time is not known.
std::string TimesText(const SimulationAnswer& answer) {
  const std::optional<graph::StepMs>& times =
      answer.under_plan ? answer.planned_times : answer.baseline_times;
  if (!times) return "";
  return fmt::format(
      "a step takes the device {}, the host {}{}\n", FormatMs(times->device),
      FormatMs(times->host),
      times->host > times->device ? ": it waits for the host" : "");
}

// Returns the line on offloading; "" if nothing is offloaded.
std::string OffloadText(const SimulationAnswer& answer) {
  if (!answer.under_plan || answer.under_plan->offload.storages.empty())
    return "";
  const graph::OffloadUse& use = answer.under_plan->offload;
  const auto storages = std::ssize(use.storages);
  return fmt::format("{} of {} {} offloaded, at most {} in host memory{}\n",
                     graph::FormatBytes(use.sent_bytes), FormatCount(storages),
                     storages == 1 ? "storage" : "storages",
                     graph::FormatBytes(use.host_peak_bytes),
                     answer.stall_ms ? fmt::format("; the step waits {} for it",
                                                   FormatMs(*answer.stall_ms))
                                     : "");
}

std::string ToText(const SimulationAnswer& answer, const Terminal& terminal) {
  const Trace& trace = *answer.trace;
  std::string text = fmt::format(
      "{}, {} operators (forward {}, backward {}, optimizer {}), {} storages\n",
      terminal.Bold(graph::OneLine(trace.model.name)),
      FormatCount(std::ssize(trace.operators)), FormatCount(trace.forward_end),
      FormatCount(trace.backward_end - trace.forward_end),
      FormatCount(std::ssize(trace.operators) - trace.backward_end),
      FormatCount(std::ssize(trace.storages)));
  if (answer.under_plan) {
    text += fmt::format("{} {} checkpointed: {} operators run again, {}\n",
                        FormatCount(static_cast<int64_t>(answer.units)),
                        answer.units == 1 ? "unit" : "units",
                        FormatCount(RunAgain(*answer.under_plan)),
                        FormatMs(answer.under_plan->recompute_ms));
    text += OffloadText(answer);
  }
  text += StreamsText("without a plan", answer.baseline_streams) +
          StreamsText("with the plan", answer.planned_streams) +
          TimesText(answer);
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight});
  const auto add = [&](const std::string& name, int64_t before, int64_t after) {
    std::vector<std::string> cells{name, graph::FormatBytes(before)};
    if (answer.under_plan) {
      cells.push_back(graph::FormatBytes(after));
      if (before > 0) {
        cells.push_back(FormatChange(static_cast<double>(before),
                                     static_cast<double>(after)));
      }
    }
    table.AddRow(std::move(cells));
  };
  table.AddRow(answer.under_plan
                   ? std::vector<std::string>{"", "baseline", "planned", ""}
                   : std::vector<std::string>{"", "baseline"});
  const Simulation& before = answer.baseline;
  const Simulation& after = answer.last();
  add("peak", before.peak_bytes, after.peak_bytes);
  for (size_t c = 0; c < graph::kStorageCategories; ++c) {
    add(fmt::format("  {}", ToString(static_cast<graph::StorageCategory>(c))),
        before.peak_by_category[c], after.peak_by_category[c]);
  }
  text += "\n" + table.ToString(terminal);
  text += fmt::format("\nbaseline's peak of {} bytes: {}\n",
                      FormatCount(before.peak_bytes), PeakText(trace, before));
  if (answer.under_plan) {
    text += fmt::format("planned peak of {} bytes: {}\n",
                        FormatCount(after.peak_bytes), PeakText(trace, after));
  }
  if (answer.run) text += "\n" + answer.run->text;
  if (!terminal.IsScreen()) return text;
  std::vector<MemoryCurve> curves{CurveOf(trace, before)};
  if (answer.under_plan) curves.push_back(CurveOf(trace, after));
  return text + "\n" + DrawMemory(curves, {}, terminal);
}

std::vector<graph::CheckpointedModule> ModulesOf(const Trace& trace,
                                                 const problems::Plan& plan,
                                                 const std::string& path) {
  try {
    return problems::CheckpointedModules(trace, plan.modules);
  } catch (const InputError& error) {
    throw NamingFile(error, path);
  }
}

Simulation SimulatePlan(const Trace& trace,
                        const std::vector<graph::CheckpointedModule>& modules,
                        const std::string& path) {
  try {
    return graph::Simulate(trace, modules);
  } catch (const InputError& error) {
    throw NamingFile(error, path);
  }
}

// Returns the trace with the segments that the plan names.
Trace TraceFor(Trace trace, const problems::Plan& plan,
               const std::string& path) {
  try {
    std::optional<Trace> with_segments =
        problems::WithSegmentsOf(trace, plan.modules);
    return with_segments ? std::move(*with_segments) : std::move(trace);
  } catch (const InputError& error) {
    throw NamingFile(error, path);
  }
}

// Runs the step, and on PyTorch's allocator where a flag asks for it. `trace`
// gets the segments that the plan names.
SimulationAnswer Simulated(const SimulateFlags& flags, Trace& trace,
                           const Terminal& terminal) {
  const AllocatorQuestion question = flags.allocator.Question();
  trace = graph::ReadTrace(flags.trace);
  SimulationAnswer answer{.trace = &trace,
                          .baseline = graph::Simulate(trace, {}),
                          .under_plan = {}};
  answer.baseline_times = TimesOfStep(trace, {}, answer.baseline);
  answer.baseline_streams = StreamTimesOf(&trace, {});
  std::vector<graph::CheckpointedModule> modules;
  if (!flags.plan.empty()) {
    const problems::Plan plan = ReadAnswer(flags.plan, trace.model.name);
    const bool has_run = !flags.allocator.FirstGiven().empty();
    if (has_run && plan.memory.world_size > 1) {
      throw InputError(fmt::format(
          "{}: world_size: expected 1, found {}: the allocations of a rank "
          "that shards parameters are not simulated",
          flags.plan, plan.memory.world_size));
    }
    trace = TraceFor(std::move(trace), plan, flags.plan);
    answer.units = plan.modules.size();
    modules = ModulesOf(trace, plan, flags.plan);
    answer.under_plan = SimulatePlan(trace, modules, flags.plan);
    answer.planned_times = TimesOfStep(trace, modules, *answer.under_plan);
    answer.planned_streams = StreamTimesOf(&trace, modules);
    if (plan.offload) {
      answer.stall_ms =
          graph::TimeOnLink(trace, *answer.under_plan, plan.offload->rates)
              .stall_ms;
      if (answer.planned_times) {
        answer.planned_times->device += *answer.stall_ms;
      }
    }
  }
  if (flags.allocator.FirstGiven().empty()) return answer;
  if (question.run.ddp) {
    graph::RequireDataParallel(trace, *question.run.ddp, "--ddp");
  }
  answer.run = SimulateRun(trace, graph::Simulator(trace).Live(modules),
                           question, !flags.timeline.empty(), terminal);
  return answer;
}

// Refuses flags that cannot be combined.
void CheckCombination(const SimulateFlags& flags) {
  const bool has_snapshot = !flags.snapshot.empty();
  if (flags.device && !has_snapshot) {
    throw InputError("--device: needs --snapshot");
  }
  if (flags.events.empty() && !has_snapshot) {
    if (!flags.trace.empty()) return;
    throw InputError("TRACE, --events or --snapshot is required");
  }
  const std::string flag = has_snapshot ? "--snapshot" : "--events";
  if (!flags.trace.empty()) {
    throw InputError(flag + ": cannot be combined with TRACE");
  }
  if (has_snapshot && !flags.events.empty()) {
    throw InputError("--snapshot: cannot be combined with --events");
  }
  for (const auto& [name, is_given] :
       {std::pair("--optimizer-state",
                  !flags.allocator.optimizer_state.empty()),
        {"--empty-cache", !flags.allocator.empty_cache.empty()},
        {"--model-order", !flags.allocator.model_order.empty()},
        {"--ddp", !flags.allocator.ddp.empty()}}) {
    if (is_given) throw InputError(fmt::format("{}: needs TRACE", name));
  }
}

int RunSimulate(const SimulateFlags& flags, const Terminal& terminal) {
  CheckCombination(flags);
  if (!flags.snapshot.empty()) {
    return RunSimulateSnapshot({.snapshot = flags.snapshot,
                                .device = flags.device,
                                .allocator = flags.allocator,
                                .timeline = flags.timeline,
                                .output = flags.output,
                                .json = flags.json},
                               terminal);
  }
  if (!flags.events.empty()) {
    return RunSimulateEvents({.events = flags.events,
                              .allocator = flags.allocator,
                              .timeline = flags.timeline,
                              .output = flags.output,
                              .json = flags.json},
                             terminal);
  }
  Trace trace;
  const SimulationAnswer answer = Simulated(flags, trace, terminal);
  std::vector<graph::NamedText> files;
  if (!flags.timeline.empty()) {
    files.push_back({flags.timeline, answer.run ? answer.run->timeline
                                                : ToCsv(trace, answer.last())});
  }
  if (!flags.output.empty()) files.push_back({flags.output, ToJson(answer)});
  graph::WriteFiles(files);
  terminal.Print(flags.json ? ToJson(answer)
                            : BrokenLines(ToText(answer, terminal), terminal));
  return kExitOk;
}

}  // namespace

Command AddSimulateCommand(CLI::App& program) {
  auto flags = std::make_shared<SimulateFlags>();
  CLI::App* app = program.add_subcommand(
      "simulate", "Compute the memory of a traced step, operator by operator");
  app->add_option("TRACE", flags->trace, "trace (.json or .json.gz)");
  app->add_option("PLAN", flags->plan, "plan file (default: no checkpointing)");
  app->add_option("--events", flags->events,
                  "simulate PyTorch's allocator on these allocations, in place "
                  "of a trace")
      ->type_name("FILE");
  app->add_option("--snapshot", flags->snapshot,
                  "simulate it on a memory snapshot that python -m acplan "
                  "snapshot converted")
      ->type_name("FILE");
  app->add_option("--device", flags->device,
                  "a device of the snapshot (default: that with most events)")
      ->type_name("N");
  flags->allocator.AddTo(
      *app,
      "the device memory that PyTorch's allocator may use, or the name of a "
      "GPU (less CUDA's context; default: no limit)");
  flags->allocator.AddOptimizerStateTo(*app, "update");
  flags->allocator.AddRunTo(*app);
  flags->allocator.AddDdpTo(*app);
  flags->allocator.AddWithoutLeastTo(*app);
  MarkAsOutput(
      app->add_option("--timeline", flags->timeline,
                      "write a CSV of the bytes in use at each operator or, on "
                      "the allocator, after each event")
          ->type_name("FILE"));
  app->add_flag("--json", flags->json, "print JSON and nothing else");
  AddOutput(*app, flags->output, "write JSON here");
  app->footer(
      "Example:\n  acplan simulate example:traces/gpt2_tiny\n"
      "  acplan simulate example:traces/gpt2_tiny --allocator "
      "expandable_segments:True\n"
      "Exit status: 0 simulated, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunSimulate(*flags, terminal);
          }};
}

}  // namespace acplan::cli
