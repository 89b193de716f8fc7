#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/link_flags.h"
#include "cli/planning/peak_place.h"
#include "cli/planning/peak_text.h"
#include "cli/planning/plan_device.h"
#include "cli/planning/plan_times_off.h"
#include "cli/planning/plan_verdict.h"
#include "cli/planning/policy_text.h"
#include "cli/planning/step_drawing.h"
#include "cli/planning/step_times.h"
#include "cli/planning/time_errors_text.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/simulation.h"
#include "problems/ask.h"
#include "problems/check/plan_check.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/planner.h"

namespace acplan::cli {

using problems::Plan;
using problems::PlanStatus;

namespace {

// --time-limit where operators may be skipped.
constexpr double kPlanSeconds = 5;

struct PlanFlags {
  std::string profile;
  std::string budget;
  PlanningFlags planning;
  AllocatorFlags allocator;
  LinkFlags link;
  TimesOffFlags times_off;
  bool without_host = false;
  std::string output;
  bool all = false;
  bool json = false;
};

std::string Heading(const graph::Profile& profile, const Plan& plan,
                    const problems::PlanOptions& options,
                    const Terminal& terminal) {
  const graph::ModelInfo& model = profile.model;
  std::string text =
      terminal.Bold(model.name.empty() ? "model" : graph::OneLine(model.name));
  text += fmt::format(", {} modules", profile.modules.size());
  if (model.batch > 0) text += fmt::format(", batch {}", model.batch);
  if (model.seq > 0) text += fmt::format(", sequence {}", model.seq);
  if (!model.dtype.empty()) text += ", " + graph::OneLine(model.dtype);
  if (!model.optimizer.empty()) text += ", " + graph::OneLine(model.optimizer);
  text += "\n";
  text += fmt::format("budget {}", FormatBytesExactly(plan.budget_bytes));
  if (plan.reserve_bytes > 0) {
    text += fmt::format(", of which {} stays free",
                        graph::FormatBytes(plan.reserve_bytes));
  }
  text += ", " + QuestionText(plan.memory);
  text += "\n" + ChoiceText(options);
  return text + "\n\n";
}

// "" where nothing may be offloaded.
std::string OffloadText(const Plan& plan) {
  if (!plan.offload) return "";
  const problems::PlanOffload& offload = *plan.offload;
  return fmt::format(
      "offloaded       {} of {} {} at {}, at most {} in the host's memory\n",
      graph::FormatBytes(offload.sent_bytes), FormatCount(offload.storages),
      offload.storages == 1 ? "storage" : "storages", RatesText(offload.rates),
      graph::FormatBytes(offload.host_bytes));
}

// "" where the step does not wait for the host.
std::string HostText(const Plan& plan) {
  if (!plan.WaitsForHost()) return "";
  std::string text = "the step waits for the host";
  if (plan.host->least_step_ms) {
    text += fmt::format(": no plan's step takes less than {}",
                        FormatMs(*plan.host->least_step_ms));
  }
  return text + "\n";
}

// Returns the lines on where the peaks are: the operators, if a trace is given, else the
// modules.
std::string PeakPlaces(const graph::Trace* trace, const Plan& plan) {
  const std::string with_plan =
      PeakPlace(trace, plan, plan.memory, plan.peak_module);
  const std::string baseline =
      plan.offload
          ? plan.baseline.peak_module
          : PeakPlace(trace, {}, plan.memory, plan.baseline.peak_module);
  if (with_plan == baseline)
    return fmt::format("peak at         {}\n", baseline);
  return fmt::format("peak at         {}\n  without plan  {}\n", with_plan,
                     baseline);
}

// `unplanned`: what a rank would need without the plan.
std::string Comparison(const graph::Trace* trace, const Plan& plan,
                       const graph::DeviceInfo& device, int64_t unplanned,
                       const Terminal& terminal) {
  const bool sharded = plan.memory.world_size > 1;
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight});
  const auto row = [&](const std::string& name, const std::string& baseline,
                       const std::string& ranks, const std::string& with_plan,
                       const std::string& change) {
    std::vector<std::string> cells{name, baseline};
    if (sharded) cells.push_back(ranks);
    cells.insert(cells.end(), {with_plan, change});
    table.AddRow(std::move(cells));
  };
  row("", "baseline", fmt::format("on {} ranks", plan.memory.world_size),
      "plan", "change");
  row("peak memory", graph::FormatBytes(plan.baseline.peak_bytes),
      graph::FormatBytes(unplanned), graph::FormatBytes(plan.peak_bytes),
      FormatChange(static_cast<double>(unplanned),
                   static_cast<double>(plan.peak_bytes)));
  const StepTimes times = StepTimesOf(plan);
  row("step time", FormatMs(times.before_ms), FormatMs(times.before_ms),
      FormatMs(times.after_ms),
      fmt::format("+{}", FormatPercentUp(StepOverheadOf(plan))));
  if (plan.WaitsForHost()) {
    const double device_ms = plan.streams
                                 ? plan.streams->baseline_ms
                                 : plan.host->device_ms - plan.CostMs();
    row("on the device", FormatMs(device_ms), FormatMs(device_ms),
        FormatMs(plan.host->device_ms),
        FormatChange(device_ms, plan.host->device_ms));
  }
  if (plan.streams) {
    const std::string exposed = FormatMs(plan.streams->baseline_exposed_ms);
    row("exposed", exposed, exposed, FormatMs(plan.streams->exposed_ms),
        fmt::format("of {} of communication",
                    FormatMs(plan.streams->communication_ms)));
  }
  row("recomputed", FormatMs(0), FormatMs(0), FormatMs(plan.recompute_ms), "");
  if (plan.offload) {
    row("stalled", FormatMs(0), FormatMs(0), FormatMs(plan.offload->stall_ms),
        "");
  }
  std::string text = table.ToString(terminal) + OffloadText(plan);
  text += TimeErrorsText(device);
  text += DeviceText(plan) + LeastDevicesText(trace, plan);
  text += PeakPlaces(trace, plan);
  return text + HostText(plan) + "\n";
}

// Units that do the same on one line, unless `all`.
std::string UnitTable(const graph::Profile& profile, const Plan& plan, bool all,
                      const Terminal& terminal) {
  if (plan.modules.empty()) {
    return "No module needs to be checkpointed: the model fits as it is.\n\n";
  }
  std::vector<UnitGroup> groups;
  if (all) {
    for (const problems::PlannedModule& module : plan.modules) {
      groups.push_back({.name = module.fqn, .units = {&module}});
    }
  } else {
    groups = GroupUnits(plan.modules);
  }
  const bool folded = groups.size() < plan.modules.size();
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kRight, kRight});
  const auto row = [&](const std::string& name, const std::string& count,
                       std::vector<std::string> rest) {
    std::vector<std::string> cells{name};
    if (folded) cells.push_back(count);
    std::ranges::move(rest, std::back_inserter(cells));
    table.AddRow(std::move(cells));
  };
  row("AC unit", "units",
      {"discard ratio", "memory budget",
       folded ? "discarded each" : "discarded",
       folded ? "recomputed each" : "recomputed"});
  int64_t discarded = 0;
  for (const UnitGroup& group : groups) {
    const problems::PlannedModule& module = *group.units.front();
    discarded += std::max<int64_t>(0, module.discarded_bytes) *
                 static_cast<int64_t>(group.units.size());
    const std::string ratio = FormatRatioUp(module.discard_ratio);
    row(group.name, fmt::format("{}", group.units.size()),
        {ratio, fmt::format("{:.4f}", std::max(0.0, 1 - std::stod(ratio))),
         module.discarded_bytes == problems::kNotStated
             ? std::string("-")
             : graph::FormatBytes(module.discarded_bytes),
         FormatMs(module.recompute_ms)});
  }
  table.AddRule();
  const size_t n = plan.modules.size();
  row(folded ? "in all" : fmt::format("{} unit{}", n, n == 1 ? "" : "s"),
      fmt::format("{}", n),
      {"", "", graph::FormatBytes(discarded), FormatMs(plan.recompute_ms)});
  std::string text = table.ToString(terminal) + "\n";

  std::string policies;
  for (const UnitGroup& group : groups) {
    const problems::PlannedModule& module = *group.units.front();
    if (module.ops.empty()) continue;
    for (const graph::Module& m : profile.modules) {
      if (m.fqn == module.fqn) {
        policies += fmt::format("{}: {}\n", terminal.Bold(group.name),
                                PolicyText(module, *m.sac));
      }
    }
  }
  return policies.empty() ? text : text + policies + "\n";
}

// A simulation is of all the memory of one device, and of operators; under the
// trace memory model the plan is one already.
bool CanSimulate(const Plan& plan) {
  return plan.HasPlan() && plan.memory.world_size == 1 &&
         !plan.memory.without_states &&
         plan.memory.model == problems::MemoryModel::kSnapshot &&
         std::ranges::all_of(plan.modules, [](const auto& module) {
           return !module.ops.empty() || module.discard_ratio == 1;
         });
}

// Simulates a plan that was made on the trace's profile.
std::optional<graph::Simulation> SimulationOf(const ProfileInput& input,
                                              const Plan& plan) {
  if (!input.trace || !CanSimulate(plan)) return std::nullopt;
  return Simulate(*input.trace,
                  problems::CheckpointedModules(*input.trace, plan.modules));
}

std::string SimulationText(const Plan& plan,
                           const graph::Simulation& simulation,
                           const Terminal& terminal) {
  const bool fits =
      simulation.peak_bytes <= plan.budget_bytes - plan.reserve_bytes;
  return fmt::format("simulated operator by operator: peak {}, {}\n",
                     FormatBytesExactly(simulation.peak_bytes),
                     fits ? terminal.Green("within the budget")
                          : terminal.Yellow("over the budget"));
}

int ExitCode(PlanStatus status) {
  switch (status) {
    case PlanStatus::kOptimal:
    case PlanStatus::kFeasible:
      return kExitOk;
    case PlanStatus::kInfeasible:
      return kExitInfeasible;
    case PlanStatus::kNoPlan:
      break;
  }
  return kExitLimit;
}

// A budget or a device, and the link of --offload.
struct Target {
  problems::Budget budget = {};
  std::optional<problems::DeviceChoice> device = {};
  std::optional<problems::LinkLimits> link = {};
};

Target ParseTarget(const PlanFlags& flags, const ProfileInput& input,
                   const problems::PlanOptions& options) {
  const bool is_for_device = IsForDevice(flags.budget, flags.allocator);
  Target target{.link = flags.link.Parse(options, DeviceOf(input))};
  if (!is_for_device) {
    target.budget = ParseBudget(flags.budget, "--budget");
    return target;
  }
  if (target.link) {
    throw InputError("--offload: needs --budget");
  }
  target.device = ParseDevice(flags.allocator, input, options);
  return target;
}

problems::DeviceAnswer FindPlan(problems::Question question,
                                const Target& target,
                                const Terminal& terminal) {
  ProgressLine progress(terminal);
  question.options.limits.on_progress = [&](const solver::SearchProgress& p) {
    progress.Show(p.seconds, [&] { return ProgressText(p); });
  };
  if (target.device) return AskForDevice(question, *target.device);
  problems::Answer answer = Ask(question, target.budget, target.link);
  if (answer.least) RequireMinimum(answer.least->least);
  return {.answer = std::move(answer)};
}

// The part of the text between the heading and the verdict.
std::string Body(const PlanFlags& flags,
                 const problems::PlanningProblem& problem, const Plan& plan,
                 int64_t unplanned, const Terminal& terminal) {
  if (plan.HasPlan()) {
    // Least devices are not worth more time than --time-limit allows.
    const bool has_time =
        flags.planning.time_limit.empty() || plan.limit != "time";
    return Comparison(has_time ? problem.trace : nullptr, plan,
                      problem.profile->device, unplanned, terminal) +
           UnitTable(*problem.profile, plan, flags.all, terminal);
  }
  return fmt::format("baseline peak {} at {}\n",
                     graph::FormatBytes(plan.baseline.peak_bytes),
                     plan.baseline.peak_module);
}

// "" for plans that are not on traces.
std::string AnyScheduleText(const Plan& plan) {
  if (!plan.any_schedule) return "";
  const problems::AnySchedule& any = *plan.any_schedule;
  return fmt::format(
      "lower bound for any schedule: {} ({} below the plan{})\n",
      FormatMs(any.bound_ms), FormatPercentUp(any.distance),
      any.is_loose ? "; loose: its search was stopped early" : "");
}

// `why`: what infeasible ends with.
std::string Ending(const ProfileInput& input, const Plan& plan,
                   const std::string& why, const std::string& regret,
                   const Terminal& terminal) {
  const PlanVerdict verdict = VerdictOn(plan);
  const std::string word = plan.status == PlanStatus::kOptimal
                               ? terminal.Green(verdict.word)
                               : terminal.Yellow(verdict.word);
  const std::optional<graph::Simulation> simulation = SimulationOf(input, plan);
  return word + verdict.text + why + AnyScheduleText(plan) + regret +
         (simulation ? SimulationText(plan, *simulation, terminal)
                     : NoteOn(CaveatOf(plan), terminal));
}

// The advice if no plan fits.
constexpr std::string_view kWayOut =
    "smaller inputs or more microbatches need less; acplan explain shows what "
    "takes the memory, line by line\n";

int RunPlan(const PlanFlags& flags, const Terminal& terminal) {
  ProfileInput input = ReadProfileOrTrace(flags.profile);
  if (flags.without_host) {
    if (!input.trace) throw InputError("--without-host: needs a trace");
    input.trace->host.reset();
  }
  const graph::Profile& profile = input.profile;
  const graph::ModuleTree tree(profile);
  problems::Question question =
      flags.planning.Question(input, tree, kPlanSeconds);
  question.times_off =
      flags.times_off.Parse(question, flags.link.offload, flags.allocator);
  const Target target = ParseTarget(flags, input, question.options);
  terminal.Log(fmt::format("{}: {} modules; searching for a plan",
                           graph::OneLine(flags.profile, 400),
                           profile.modules.size()));
  const solver::LimitClock clock(question.options.limits);
  const problems::DeviceAnswer of_device = FindPlan(question, target, terminal);
  const problems::Answer& answer = of_device.answer;
  const Plan& plan = answer.plan;
  const problems::PlanningProblem& first = answer.families.front().problem;
  for (const std::string& warning : first.warnings()) terminal.Warn(warning);
  if (answer.least && !answer.least->least.budget.proven) {
    terminal.Warn("budget min: " + UnprovenText(answer.least->least.budget));
  }

  std::string why = plan.status == PlanStatus::kInfeasible
                        ? InfeasibleText(answer.families, clock.Remaining())
                        : NoFitText(of_device.least_device_bytes);
  if (!why.empty()) why += kWayOut;
  const std::string json = PlanToJson(plan);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(
      flags.json
          ? json
          : BrokenLines(Heading(profile, plan, question.options, terminal) +
                            NamedDeviceText(flags.allocator) +
                            Body(flags, answer.problem(), plan,
                                 first.unplanned_peak_bytes, terminal) +
                            StepDrawing(input.TraceIfAny(), plan, terminal) +
                            Ending(input, plan, why,
                                   TimesOffText(question, plan), terminal),
                        terminal));
  if (plan.HasPlan()) return kExitOk;
  const PlanVerdict verdict = VerdictOn(plan);
  return terminal.Explain(verdict.word + verdict.text + why,
                          ExitCode(plan.status));
}

}  // namespace

Command AddPlanCommand(CLI::App& program) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* app = program.add_subcommand(
      "plan", "Find the optimal checkpointing plan for a memory budget");
  app->add_option("PROFILE", flags->profile,
                  "profile or trace (.json or .json.gz)")
      ->required();
  app->add_option(
         "--budget", flags->budget,
         "limit of a rank's peak memory: 1.6GiB, 1600MB, bytes; 75%: of the "
         "peak without a plan; min: the smallest budget that some plan meets")
      ->type_name("SIZE");
  flags->allocator.AddTo(*app,
                         "in place of a budget: the device memory that PyTorch "
                         "may use, or the name "
                         "of a GPU (less CUDA's context); simulates "
                         "runs of steps on PyTorch's allocator");
  flags->allocator.AddOptimizerStateTo(*app, "the one that recomputes less");
  flags->allocator.AddDdpTo(*app);
  flags->planning.AddTo(*app, kPlanSeconds);
  flags->planning.AddSegmentsTo(*app);
  flags->link.AddTo(*app);
  flags->times_off.AddTo(*app);
  app->add_flag("--without-host", flags->without_host,
                "do not count the host's time, as if CUDA graphs launched the "
                "step; on traces");
  AddOutput(*app, flags->output,
            "write the plan file here (.json or .json.gz)");
  app->add_flag("--all", flags->all, "list identical units one by one");
  app->add_flag("--json", flags->json, "print the plan file and nothing else");
  app->footer(
      "Example:\n  acplan plan example:profiles/gpt2_small --budget 10GiB "
      "-o plan.json\n"
      "  acplan plan example:traces/gpt2_small --device-memory 8GiB "
      "-o device.json\n"
      "Exit status: 0 a plan was found, 2 bad input, 3 proven infeasible, 4 a "
      "limit was hit without a plan.");
  return {app, [flags](const Terminal& terminal) {
            return RunPlan(*flags, terminal);
          }};
}

}  // namespace acplan::cli
