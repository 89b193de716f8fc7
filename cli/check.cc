#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "cli/command.h"
#include "cli/flags.h"
#include "cli/plan_input.h"
#include "cli/text.h"
#include "graph/byte_size.h"
#include "graph/input_error.h"
#include "graph/module_tree.h"
#include "graph/profile.h"
#include "problems/plan.h"
#include "problems/plan_check.h"

namespace acplan::cli {

namespace {

struct CheckFlags {
  std::string profile;
  std::string plan;
  std::string budget;
  std::string reserve;
  MemoryFlags memory;
  UnitFlags units;
  bool json = false;
};

int RunCheck(const CheckFlags& flags, const Terminal& terminal) {
  const graph::Profile profile = graph::ReadProfile(flags.profile);
  problems::Plan plan = ReadAnswer(flags.plan, profile);
  const graph::ModuleTree tree(profile);
  const problems::MemoryOptions memory = flags.memory.Resolve(plan.memory);
  // What the plan states of memory holds for its own question only.
  const bool same_model = memory.model == plan.memory.model &&
                          memory.world_size == plan.memory.world_size &&
                          memory.without_states == plan.memory.without_states;
  if (!same_model) {
    plan.peak_bytes = problems::kNotStated;
    plan.peak_module.clear();
    plan.baseline.peak_bytes = problems::kNotStated;
  }
  plan.memory = memory;
  plan.budget_bytes = graph::ParseByteSize(flags.budget, "--budget");
  plan.reserve_bytes = ParseReserve(flags.reserve).value_or(plan.reserve_bytes);
  if (plan.reserve_bytes >= plan.budget_bytes) {
    throw InputError(fmt::format(
        "{}: expected less than the budget ({}), found {}",
        flags.reserve.empty() ? flags.plan + ": reserve_bytes" : "--reserve",
        graph::FormatBytes(plan.budget_bytes),
        graph::FormatBytes(plan.reserve_bytes)));
  }
  const problems::PlanRules rules{.ac_units = flags.units.AcUnits(),
                                  .fsdp_units = flags.units.FsdpUnits(),
                                  .max_units = flags.units.MaxUnits()};
  FindModules(profile, tree, rules.ac_units, "--ac-units");
  FindModules(profile, tree, rules.fsdp_units, "--fsdp-units");
  std::optional<std::string> broken;
  std::optional<problems::PlanEffect> effect;
  try {
    broken = FirstBrokenRule(profile, plan, rules);
    effect = ComputeEffect(profile, plan.modules, plan.memory, plan.tradeoff);
  } catch (const InputError& error) {
    // A unit that breaks a rule may have no effect that could be computed.
    if (!broken) throw NamingFile(error, flags.plan);
  }
  if (flags.json) {
    nlohmann::ordered_json json;
    json["holds"] = !broken;
    if (broken) json["broken_rule"] = *broken;
    json["memory_model"] = ToString(plan.memory.model);
    json["world_size"] = plan.memory.world_size;
    json["caveat"] = Caveat(plan.memory.model);
    json["budget_bytes"] = plan.budget_bytes;
    json["reserve_bytes"] = plan.reserve_bytes;
    if (effect) {
      json["peak_bytes"] = effect->peak_bytes;
      json["peak_module"] = effect->peak_module;
      json["recompute_ms"] = effect->recompute_ms;
    }
    terminal.Print(json.dump(2) + "\n");
    return broken ? kExitFailure : kExitOk;
  }
  if (broken) {
    terminal.Print(fmt::format("{}: {}\n", terminal.Yellow("broken"), *broken));
    return kExitFailure;
  }
  terminal.Print(
      fmt::format(
          "{}: {} unit{}, peak {} at {}, {} below the budget; recomputes {}\n",
          terminal.Green("holds"), plan.modules.size(),
          plan.modules.size() == 1 ? "" : "s",
          graph::FormatBytes(effect->peak_bytes), effect->peak_module,
          graph::FormatBytes(plan.budget_bytes - effect->peak_bytes),
          FormatMs(effect->recompute_ms)) +
      NoteOn(plan.memory.model, terminal));
  return kExitOk;
}

}  // namespace

Command AddCheckCommand(CLI::App& program) {
  auto flags = std::make_shared<CheckFlags>();
  CLI::App* app = program.add_subcommand(
      "check", "Check a plan against a profile and a budget, independently");
  app->add_option("PROFILE", flags->profile, "profile (.json or .json.gz)")
      ->required();
  app->add_option("PLAN", flags->plan, "plan file")->required();
  app->add_option("--budget", flags->budget,
                  "memory a rank may use at its peak")
      ->required()
      ->type_name("SIZE");
  app->add_option("--reserve", flags->reserve, "of the budget, keep SIZE free")
      ->type_name("SIZE");
  flags->memory.AddTo(*app);
  flags->units.AddTo(*app);
  app->add_flag("--json", flags->json, "print JSON, nothing else");
  app->footer(
      "Memory model, world size and reserve are the plan's unless given.\n"
      "Example:\n  acplan check data/profiles/gpt2_small.json.gz plan.json "
      "--budget 10GiB\n"
      "Exit status: 0 the plan holds, 1 it breaks a rule, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunCheck(*flags, terminal);
          }};
}

}  // namespace acplan::cli
