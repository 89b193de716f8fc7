#include "problems/trainers/emit.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <memory>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "cli/command.h"
#include "cli/input/output_files.h"
#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "cli/planning/plan_device.h"
#include "cli/planning/trainer_flags.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/trace/stream_times.h"
#include "problems/trainers/device_emit.h"

namespace acplan::cli {

using problems::Emission;
using problems::Plan;
using problems::PlanStatus;

namespace {

struct EmitFlags {
  std::string trace;
  std::string trainer;
  std::string budget;
  TrainerFlags search;
  std::string output;
  bool json = false;
};

std::string EmitCommand(const EmitFlags& flags) {
  const bool is_for_device = flags.budget.empty();
  std::string command = fmt::format(
      "acplan emit {} {} {} --for {}", graph::OneLine(flags.trace, 400),
      is_for_device ? "--device-memory" : "--budget",
      graph::OneLine(
          is_for_device ? flags.search.allocator.device_memory : flags.budget,
          400),
      flags.trainer);
  const auto add = [&](const char* flag, const std::string& value) {
    if (!value.empty()) {
      command += fmt::format(" {} '{}'", flag, graph::OneLine(value, 400));
    }
  };
  add("--blocks", flags.search.blocks);
  add("--reserve", flags.search.planning.reserve);
  add("--world-size", flags.search.planning.memory.world_size);
  add("--allocator", flags.search.allocator.allocator);
  add("--torch-version", flags.search.allocator.torch_version);
  add("--optimizer-state", flags.search.allocator.optimizer_state);
  add("--ddp", flags.search.allocator.ddp);
  add("--offload", flags.search.link.offload);
  add("--host-memory", flags.search.link.host_memory);
  return command;
}

// Returns "recomputed 3.2 ms a step (+4.1%)".
std::string CostText(const Plan& plan) {
  return fmt::format(
      "recomputed {} a step (+{}){}", FormatMs(plan.recompute_ms),
      FormatPercentUp(plan.overhead),
      plan.offload ? fmt::format(", waiting {} for the link",
                                 FormatMs(plan.offload->stall_ms))
                   : "");
}

std::string ProofText(const Plan& plan) {
  return plan.status == PlanStatus::kOptimal
             ? "the least that this language can say, to 0.01% of a step"
             : fmt::format("this language can say no less than {}",
                           FormatMs(plan.bound_ms));
}

// Returns what the restriction costs beside the best plan.
std::string GapText(const Emission& emission) {
  const Plan& best = emission.free_plan;
  if (!best.HasPlan()) return "acplan plan found no plan in its time";
  return fmt::format(
      "{} more than the plan of acplan plan, {}",
      FormatMs(std::max(0.0, emission.plan.CostMs() - best.CostMs())),
      CostText(best));
}

std::vector<std::string> Comments(const EmitFlags& flags,
                                  const problems::Trainer& trainer,
                                  const Emission& emission) {
  const Plan& plan = emission.plan;
  std::vector<std::string> comments = {
      EmitCommand(flags),
      fmt::format("for {}, in {}", trainer.version, trainer.place),
      fmt::format("peak {} of {}, {}", graph::FormatBytes(plan.peak_bytes),
                  graph::FormatBytes(emission.budget_bytes), CostText(plan)),
      fmt::format("{}; {}", ProofText(plan), GapText(emission))};
  if (!plan.device) return comments;
  comments.push_back(
      fmt::format("on the device: {} reserved at most; the least device has {} "
                  "(PyTorch {})",
                  graph::FormatBytes(plan.device->reserved_bytes),
                  graph::FormatBytes(plan.device->least_device_bytes),
                  plan.device->torch_version));
  std::istringstream settings(SettingsText(*plan.device));
  for (std::string line; std::getline(settings, line);) {
    comments.push_back(line);
  }
  return comments;
}

std::string LeastOfTrainerText(const problems::Trainer& trainer,
                               const Emission& emission) {
  if (!emission.least) {
    return fmt::format(
               "no policy of {} that was tried ends on a device of {}\n",
               trainer.name, FormatBytesExactly(emission.budget_bytes)) +
           NoFitText(emission.least_device_bytes);
  }
  const problems::LanguageMinimum& least = *emission.least;
  return fmt::format(
      "no policy of {} fits in {}; the least budget of its language is {}{}\n",
      trainer.name, FormatBytesExactly(emission.budget_bytes),
      least.is_proven ? "" : "at most ",
      FormatBytesExactly(least.peak_bytes + emission.free_plan.reserve_bytes));
}

std::string EmissionJson(const EmitFlags& flags,
                         const problems::Trainer& trainer,
                         const Emission& emission, const graph::Trace& trace) {
  using Json = nlohmann::ordered_json;
  Json root{{"format", "acplan.emission"},
            {"version", 1},
            {"command", EmitCommand(flags)},
            {"trainer", trainer.name},
            {"checked_against", trainer.version},
            {"budget_bytes", emission.budget_bytes}};
  const Plan& plan = emission.plan;
  const bool is_found = emission.HasPolicy();
  root["status"] =
      is_found ? ToString(plan.status)
      : emission.solution.status == solver::SearchStatus::kInfeasible
          ? "infeasible"
          : "no_plan";
  if (is_found) {
    root["peak_bytes"] = plan.peak_bytes;
    root["recompute_ms"] = plan.recompute_ms;
    root["overhead"] = plan.overhead;
    root["bound_ms"] = plan.bound_ms;
    root["saved"] = emission.solution.policy.saved;
    if (plan.offload) {
      root["offloaded"] = emission.solution.policy.offloaded;
      root["stall_ms"] = plan.offload->stall_ms;
      root["host_bytes"] = plan.offload->host_bytes;
    }
    root["units"] = emission.units;
    root["reruns"] = problems::RerunsByName(emission.solution.use, trace);
    root["text"] = emission.text;
    if (plan.device) {
      root["on_device"] = {
          {"allocator", plan.device->allocator},
          {"optimizer_state",
           plan.device->makes_state_first ? "first" : "update"},
          {"reserved_bytes", plan.device->reserved_bytes},
          {"least_device_bytes", plan.device->least_device_bytes}};
    }
  }
  if (emission.least_device_bytes) {
    root["least_device_bytes"] = *emission.least_device_bytes;
  }
  if (emission.least) {
    root["least_budget_bytes"] =
        emission.least->peak_bytes + emission.free_plan.reserve_bytes;
    root["least_is_proven"] = emission.least->is_proven;
  }
  const Plan& best = emission.free_plan;
  root["plan"] = {{"status", ToString(best.status)}};
  if (best.HasPlan()) {
    root["plan"]["peak_bytes"] = best.peak_bytes;
    root["plan"]["recompute_ms"] = best.recompute_ms;
    root["plan"]["overhead"] = best.overhead;
    if (best.offload) root["plan"]["stall_ms"] = best.offload->stall_ms;
  }
  return root.dump(1) + "\n";
}

int RunEmit(const EmitFlags& flags, const Terminal& terminal) {
  problems::Trainer trainer = problems::FindTrainer(flags.trainer, "--for");
  const bool is_for_device = IsForDevice(flags.budget, flags.search.allocator);
  ProfileInput input = ReadProfileOrTrace(flags.trace);
  if (!input.trace) {
    throw InputError(fmt::format("{}: expected a trace, found a profile",
                                 graph::OneLine(flags.trace, 400)));
  }
  // Languages and plans are compared by their recomputation.
  input.trace->host.reset();
  graph::MergeStreams(*input.trace);
  const graph::ModuleTree tree(input.profile);
  const problems::Question question =
      flags.search.planning.Question(input, tree, TrainerFlags::kSeconds);
  trainer = flags.search.WithLink(std::move(trainer), question.options,
                                  DeviceOf(input));
  const Emission emission =
      is_for_device ? EmitForDevice(question,
                                    ParseDevice(flags.search.allocator, input,
                                                question.options),
                                    trainer, flags.search.blocks)
                    : Emit(question, ParseBudget(flags.budget, "--budget"),
                           trainer, flags.search.blocks);
  if (!emission.notes.empty()) terminal.Warn(emission.notes.front());
  const bool is_found = emission.HasPolicy();
  std::string text;
  if (is_found) {
    for (const std::string& line : Comments(flags, trainer, emission)) {
      text += "# " + line + "\n";
    }
    text += emission.text;
    if (!flags.output.empty()) graph::WriteFile(flags.output, text);
  }
  const std::string why = is_found ? "" : LeastOfTrainerText(trainer, emission);
  terminal.Print(flags.json
                     ? EmissionJson(flags, trainer, emission, *input.trace)
                     : text + why);
  if (is_found) return kExitOk;
  return terminal.Explain(
      why, emission.solution.status == solver::SearchStatus::kInfeasible
               ? kExitInfeasible
               : kExitLimit);
}

}  // namespace

Command AddEmitCommand(CLI::App& program) {
  auto flags = std::make_shared<EmitFlags>();
  CLI::App* app = program.add_subcommand(
      "emit", "Print the best policy that a trainer's configuration can say");
  app->add_option("TRACE", flags->trace, "trace (.json or .json.gz)")
      ->required();
  app->add_option("--for", flags->trainer,
                  "trainer: " + problems::TrainerNames())
      ->type_name("NAME")
      ->required();
  app->add_option(
         "--budget", flags->budget,
         "limit of a rank's peak memory: 1.6GiB, 1600MB, bytes; 75%: of the "
         "peak without a plan; min: the least that the trainer can reach")
      ->type_name("SIZE");
  flags->search.AddTo(*app,
                      "in place of a budget: the device memory that PyTorch "
                      "may use, or the name of a GPU; runs of the policy's "
                      "steps on PyTorch's allocator decide");
  AddOutput(*app, flags->output, "write the configuration here");
  app->add_flag("--json", flags->json,
                "print the policy and its figures as JSON");
  app->footer(
      "Example:\n  acplan emit example:traces/gpt2_small --budget 8GiB "
      "--for axolotl\n"
      "Exit status: 0 a policy was found, 2 bad input, 3 proven infeasible, 4 "
      "a limit was hit without a policy.");
  return {app, [flags](const Terminal& terminal) {
            return RunEmit(*flags, terminal);
          }};
}

}  // namespace acplan::cli
