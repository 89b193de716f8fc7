#include "problems/module_checkpointing.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "graph/byte_size.h"
#include "graph/input_error.h"
#include "problems/baseline.h"
#include "problems/minimum_budget.h"
#include "problems/module_labels.h"
#include "problems/module_milp.h"
#include "problems/module_problem.h"
#include "problems/module_solution.h"
#include "problems/plan_check.h"

namespace acplan::problems {

using graph::ModuleTree;
using graph::Profile;
using solver::StoppedBy;

namespace {

void CheckOptions(const PlanOptions& options) {
  if (options.budget_bytes <= 0) {
    throw InputError(fmt::format("--budget: expected a positive size, found {}",
                                 options.budget_bytes));
  }
  if (options.reserve_bytes < 0 ||
      options.reserve_bytes >= options.budget_bytes) {
    throw InputError(
        fmt::format("--reserve: expected less than the budget ({}), found {}",
                    graph::FormatBytes(options.budget_bytes),
                    graph::FormatBytes(options.reserve_bytes)));
  }
  if (options.memory.world_size < 1) {
    throw InputError(fmt::format("--world-size: expected at least 1, found {}",
                                 options.memory.world_size));
  }
  if (options.max_units && *options.max_units < 0) {
    throw InputError(fmt::format("--max-units: expected at least 0, found {}",
                                 *options.max_units));
  }
}

std::optional<std::string> LimitName(StoppedBy stopped_by) {
  switch (stopped_by) {
    case StoppedBy::kTime:
      return "time";
    case StoppedBy::kGap:
      return "gap";
    case StoppedBy::kNodes:
      return "nodes";
    case StoppedBy::kInterrupt:
      return "interrupted";
    case StoppedBy::kNothing:
      break;
  }
  return std::nullopt;
}

PlanStatus ToPlanStatus(SearchStatus status) {
  switch (status) {
    case SearchStatus::kOptimal:
      return PlanStatus::kOptimal;
    case SearchStatus::kFeasible:
      return PlanStatus::kFeasible;
    case SearchStatus::kInfeasible:
      return PlanStatus::kInfeasible;
    case SearchStatus::kNoSolution:
      break;
  }
  return PlanStatus::kNoPlan;
}

ModuleSolution Solve(const ModuleProblem& problem, const PlanOptions& options) {
  if (options.engine == Engine::kLabels && !problem.prefix_structure) {
    throw InputError(
        "--engine labels: a module runs outside its parent's forward in this "
        "profile (order.fw_post); use --engine cbc");
  }
  const bool labels =
      options.engine == Engine::kLabels ||
      (options.engine == Engine::kAuto && problem.prefix_structure);
  return labels ? SolveByLabels(problem, options.limits)
                : SolveByCbc(problem, options.limits);
}

std::vector<PlannedModule> Decode(const Profile& profile,
                                  const ModuleTree& tree,
                                  const BuiltModuleProblem& built,
                                  const std::vector<ChosenUnit>& units) {
  std::vector<PlannedModule> modules;
  for (const ChosenUnit& unit : units) {
    const UnitScale& scale = built.scales[unit.node];
    PlannedModule module;
    module.fqn = profile.modules[tree.node(unit.node).module].fqn;
    module.discard_ratio = std::clamp(scale.Ratio(unit.net_bytes), 0.0, 1.0);
    module.memory_budget = 1 - module.discard_ratio;
    module.discarded_bytes = std::llround(unit.net_bytes + scale.held_bytes);
    module.recompute_ms =
        CurveCost(built.problem.nodes[unit.node].curve, unit.net_bytes);
    modules.push_back(std::move(module));
  }
  return modules;
}

}  // namespace

std::string_view ToString(Engine engine) {
  switch (engine) {
    case Engine::kLabels:
      return "labels";
    case Engine::kCbc:
      return "cbc";
    case Engine::kAuto:
      break;
  }
  return "auto";
}

std::optional<Engine> ParseEngine(std::string_view name) {
  for (const Engine engine : {Engine::kAuto, Engine::kLabels, Engine::kCbc}) {
    if (ToString(engine) == name) return engine;
  }
  return std::nullopt;
}

PlanResult PlanModules(const Profile& profile, const ModuleTree& tree,
                       const PlanOptions& options) {
  CheckOptions(options);
  PlanResult result;
  Plan& plan = result.plan;
  plan.model = profile.model.name;
  plan.budget_bytes = options.budget_bytes;
  plan.reserve_bytes = options.reserve_bytes;
  plan.memory = options.memory;
  plan.baseline = ComputeBaseline(profile, tree, options.memory);

  BuiltModuleProblem built = BuildModuleProblem(
      profile, tree,
      {.memory = options.memory,
       .budget_bytes =
           static_cast<double>(options.budget_bytes - options.reserve_bytes),
       .ac_units = options.ac_units,
       .fsdp_units = options.fsdp_units,
       .max_units = options.max_units,
       .bound_by_forced_saves = options.memory.model != MemoryModel::kTorch});
  result.warnings = std::move(built.warnings);

  const ModuleSolution solution = Solve(built.problem, options);
  plan.status = ToPlanStatus(solution.status);
  plan.limit = LimitName(solution.stopped_by);
  plan.solver = {.name = solution.engine,
                 .seconds = solution.seconds,
                 .nodes = solution.nodes,
                 .rows = solution.rows,
                 .columns = solution.columns};
  if (plan.status == PlanStatus::kInfeasible) {
    const MinimumBudget minimum =
        FindMinimumBudget(built.problem, options.limits);
    if (minimum.proven &&
        minimum.bytes <= options.budget_bytes - options.reserve_bytes) {
      throw std::logic_error(fmt::format(
          "engine {} calls a budget infeasible that a plan meets: {} bytes",
          solution.engine, options.budget_bytes));
    }
    if (minimum.proven) {
      plan.minimum_budget_bytes = minimum.bytes + options.reserve_bytes;
    }
    return result;
  }
  if (!plan.HasPlan()) return result;

  plan.modules = Decode(profile, tree, built, solution.units);
  const PlanEffect effect =
      ComputeEffect(profile, plan.modules, options.memory);
  plan.recompute_ms = effect.recompute_ms;
  plan.bound_ms = plan.status == PlanStatus::kOptimal
                      ? plan.recompute_ms
                      : std::min(solution.bound_ms, plan.recompute_ms);
  plan.gap = plan.recompute_ms > 0
                 ? (plan.recompute_ms - plan.bound_ms) / plan.recompute_ms
                 : 0;
  plan.overhead = plan.baseline.runtime_ms > 0
                      ? plan.recompute_ms / plan.baseline.runtime_ms
                      : 0;
  plan.peak_bytes = effect.peak_bytes;
  plan.peak_module = effect.peak_module;
  std::optional<std::string> broken =
      FirstBrokenRule(profile, plan,
                      {.ac_units = options.ac_units,
                       .fsdp_units = options.fsdp_units,
                       .max_units = options.max_units});
  if (!broken && std::abs(plan.recompute_ms - solution.ms) >
                     1e-6 * std::max(1.0, solution.ms)) {
    broken = fmt::format("it recomputes {} ms, the engine says {} ms",
                         plan.recompute_ms, solution.ms);
  }
  if (broken) {
    throw std::logic_error("the plan fails its check: " + *broken);
  }
  return result;
}

}  // namespace acplan::problems
