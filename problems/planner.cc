#include "problems/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "graph/base/byte_size.h"
#include "graph/base/input_error.h"
#include "problems/check/plan_check.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/engines/labels/module_labels.h"
#include "problems/engines/milp/joint_milp.h"
#include "problems/engines/milp/module_milp.h"
#include "problems/engines/minimum_budget.h"
#include "problems/engines/operator_checkpointing.h"
#include "problems/model/joint_solution.h"
#include "problems/model/module_problem.h"
#include "problems/model/module_solution.h"
#include "problems/plan/baseline.h"
#include "problems/trace/trace_least_budget.h"
#include "problems/trace/trace_search.h"

namespace acplan::problems {

using solver::SearchStatus;

using graph::ModuleTree;
using graph::Profile;
using solver::StoppedBy;

namespace {

constexpr int64_t kMostDecodingLabels = 1 << 20;
// For what would fit, whatever limit was set.
constexpr double kLeastSeconds = 1;

void CheckBudget(const PlanOptions& options) {
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
}

void CheckOptions(const PlanOptions& options) {
  if (options.memory.world_size < 1) {
    throw InputError(fmt::format("--world-size: expected at least 1, found {}",
                                 options.memory.world_size));
  }
  if (options.max_units && *options.max_units < 0) {
    throw InputError(fmt::format("--max-units: expected at least 0, found {}",
                                 *options.max_units));
  }
  if (options.granularity == Granularity::kOperator &&
      options.tradeoff != Tradeoff::kPareto) {
    throw InputError(fmt::format(
        "--tradeoff: expected pareto at operator granularity, found {}",
        ToString(options.tradeoff)));
  }
  if (options.granularity == Granularity::kModule &&
      !options.patterns.empty()) {
    throw InputError(fmt::format(
        "{}: expected at operator granularity only, found at module "
        "granularity",
        options.patterns.save.empty() ? "--recompute" : "--save"));
  }
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

void CheckTraceOptions(const PlanOptions& options) {
  if (options.granularity != Granularity::kOperator) {
    throw InputError(
        "--granularity: expected operator with the memory model trace, found "
        "module; use --memory-model snapshot");
  }
  if (options.engine == Engine::kCbc) {
    throw InputError(
        "--engine: expected auto or labels with the memory model trace, found "
        "cbc");
  }
  if (options.memory.without_states) {
    throw InputError(
        "--without-states: expected with the memory model snapshot, found with "
        "trace");
  }
}

void CheckEngine(const ModuleProblem& problem, Engine engine) {
  if (engine == Engine::kLabels && !problem.prefix_structure) {
    throw InputError(
        "--engine labels: a module runs outside its parent's forward in this "
        "profile (order.fw_post); use --engine cbc");
  }
}

bool TakesLabels(const ModuleProblem& problem, Engine engine) {
  return engine == Engine::kLabels ||
         (engine == Engine::kAuto && problem.prefix_structure);
}

// The units that keep every record of the problem, or none.
std::vector<ChosenUnit> Fitting(const ModuleProblem& problem,
                                const std::vector<ChosenUnit>& units) {
  return !units.empty() && SolutionPeak(problem, units) <= problem.budget_bytes
             ? units
             : std::vector<ChosenUnit>();
}

// CBC takes no start.
ModuleSolution NoWorseThan(const std::vector<ChosenUnit>& known,
                           double known_ms, ModuleSolution solution) {
  if (known.empty() || solution.status == SearchStatus::kInfeasible ||
      solution.ms <= known_ms) {
    return solution;
  }
  if (solution.status == SearchStatus::kNoSolution) {
    solution.status = SearchStatus::kFeasible;
  }
  solution.units = known;
  solution.ms = known_ms;
  solution.bound_ms = std::min(solution.bound_ms, known_ms);
  return solution;
}

PlannedModule DecodeModule(const Profile& profile, const ModuleTree& tree,
                           const BuiltModuleProblem& built,
                           const ChosenUnit& unit) {
  const UnitScale& scale = built.scales[unit.node];
  PlannedModule module;
  module.fqn = profile.modules[tree.node(unit.node).module].fqn;
  module.discard_ratio = std::clamp(scale.Ratio(unit.net_bytes), 0.0, 1.0);
  module.memory_budget = 1 - module.discard_ratio;
  module.discarded_bytes = std::llround(unit.net_bytes + scale.held_bytes);
  module.recompute_ms =
      CurveCost(built.problem.nodes[unit.node].curve, unit.net_bytes);
  return module;
}

// The unit's policy, of equal groups the later ones recomputed.
OperatorPolicy EnginesPolicy(const graph::SacStatistics& sac,
                             const graph::OperatorGroups& groups,
                             const JointProblem::Policies& policies,
                             const ChosenUnit& unit) {
  std::vector<int> left = unit.counts;
  std::vector<char> save(groups.group_of.size(), 1);
  for (size_t g = groups.groups.size(); g-- > 0;) {
    const graph::OperatorGroup& group = groups.groups[g];
    bool recomputed = group.rule == graph::GroupRule::kRecompute;
    if (group.rule == graph::GroupRule::kFree && group.memory > 0) {
      recomputed = group.runtime == 0;
      for (size_t k = 0; k < left.size() && !recomputed; ++k) {
        const GroupKind& kind = policies.kinds[k];
        recomputed = kind.bytes == group.memory && kind.ms == group.runtime &&
                     left[k]-- > 0;
      }
    }
    for (const int op : group.ops) save[op] = recomputed ? 0 : 1;
  }
  return PolicyOf(sac, std::move(save));
}

PlannedModule Planned(const graph::Module& of, const OperatorPolicy& policy) {
  const std::vector<int64_t>& memory = of.sac->memory;
  const int64_t total =
      std::accumulate(memory.begin(), memory.end(), int64_t{0});
  PlannedModule module;
  module.fqn = of.fqn;
  module.memory_budget = total > 0 ? static_cast<double>(policy.saved_bytes) /
                                         static_cast<double>(total)
                                   : 1;
  module.discard_ratio = 1 - module.memory_budget;
  // Below 0 where temporaries are saved.
  module.discarded_bytes = std::max<int64_t>(
      kNotStated, std::min(of.act_fw_per_module, total) - policy.saved_bytes);
  module.recompute_ms = policy.recompute_ms;
  for (size_t k = 0; k < policy.save.size(); ++k) {
    module.ops.push_back({.index = static_cast<int>(k),
                          .name = of.sac->func_names[k],
                          .save = policy.save[k] != 0});
  }
  return module;
}

// The policy with the least recomputation that discards what the unit must, or
// the engine's where that would take long to find.
PlannedModule DecodeUnit(const Profile& profile, const ModuleTree& tree,
                         const BuiltJointProblem& built,
                         const ChosenUnit& unit) {
  const graph::Module& of = profile.modules[tree.node(unit.node).module];
  const graph::OperatorGroups& groups = built.groups[unit.node];
  const int64_t discarded = std::llround(
      unit.net_bytes + built.problem.relaxed.nodes[unit.node].held_bytes);
  const int64_t total = groups.TotalBytes();
  const int64_t kept = std::min(of.act_fw_per_module, total);
  const JointProblem::Policies& policies =
      built.problem.policies[built.problem.policies_of[unit.node]];
  OperatorPolicy policy = EnginesPolicy(*of.sac, groups, policies, unit);
  OperatorSolution least = SolveOperators(groups, kept - discarded,
                                          {.node_limit = kMostDecodingLabels});
  if (least.status == SearchStatus::kOptimal ||
      least.policy.recompute_ms < policy.recompute_ms) {
    policy = std::move(least.policy);
  }
  return Planned(of, policy);
}

// What an engine says, and how to read it.
struct Outcome {
  ModuleSolution solution;
  std::vector<PlannedModule> modules;
  KnownUnits units;
};

Outcome Solve(const PlanningProblem& problem, BuiltModuleProblem built,
              int64_t usable_bytes, const solver::SearchLimits& limits,
              const KnownUnits& known) {
  built.problem.budget_bytes = static_cast<double>(usable_bytes);
  const std::vector<ChosenUnit> fitting = Fitting(built.problem, known.units);
  Outcome outcome;
  outcome.solution =
      TakesLabels(built.problem, problem.options.engine)
          ? SolveByLabels(built.problem, limits, fitting)
          : NoWorseThan(fitting, SolutionCost(built.problem, fitting),
                        SolveByCbc(built.problem, limits));
  for (const ChosenUnit& unit : outcome.solution.units) {
    outcome.modules.push_back(
        DecodeModule(*problem.profile, *problem.tree, built, unit));
  }
  outcome.units.units = outcome.solution.units;
  return outcome;
}

Outcome Solve(const PlanningProblem& problem, BuiltJointProblem built,
              int64_t usable_bytes, const solver::SearchLimits& limits,
              const KnownUnits& known) {
  ModuleProblem& relaxed = built.problem.relaxed;
  relaxed.budget_bytes = static_cast<double>(usable_bytes);
  const std::vector<ChosenUnit> fitting = Fitting(relaxed, known.units);
  Outcome outcome;
  outcome.solution =
      TakesLabels(relaxed, problem.options.engine)
          ? SolveJointByLabels(built.problem, limits, fitting)
          : NoWorseThan(fitting, JointCost(built.problem, fitting),
                        SolveJointByCbc(built.problem, limits));
  for (const ChosenUnit& unit : outcome.solution.units) {
    outcome.modules.push_back(
        DecodeUnit(*problem.profile, *problem.tree, built, unit));
  }
  outcome.units.units = outcome.solution.units;
  return outcome;
}

// A unit without a policy.
PlannedModule WholeUnit(const TraceProblem& built, const std::string& fqn,
                        int32_t module) {
  PlannedModule unit;
  unit.fqn = fqn;
  unit.discard_ratio = 1;
  unit.memory_budget = 0;
  unit.recompute_ms = 0;
  for (const CandidateCall& candidate : built.candidates) {
    if (built.trace->calls[candidate.call].module == module) {
      unit.recompute_ms += WholeMs(built, candidate);
    }
  }
  return unit;
}

// Units under the trace memory model, in the order of the module tree.
std::vector<PlannedModule> DecodeUnits(
    const PlanningProblem& problem, const TraceProblem& built,
    const std::vector<graph::CheckpointedModule>& units) {
  std::vector<PlannedModule> modules;
  for (int i = 0; i < problem.tree->size(); ++i) {
    const graph::Module& of =
        problem.profile->modules[problem.tree->node(i).module];
    const auto unit = std::ranges::find(units, of.fqn, [&](const auto& u) {
      return problem.trace->modules[u.module].fqn;
    });
    if (unit == units.end()) continue;
    modules.push_back(unit->save.empty()
                          ? WholeUnit(built, of.fqn, unit->module)
                          : Planned(of, PolicyOf(*of.sac, unit->save)));
  }
  return modules;
}

Outcome Solve(const PlanningProblem& problem, const TraceProblem& built,
              int64_t usable_bytes, const solver::SearchLimits& limits,
              const KnownUnits& known) {
  const TraceSolution found =
      SolveTraceProblem(built, usable_bytes, limits, known.modules);
  Outcome outcome;
  outcome.solution = {.status = found.status,
                      .stopped_by = found.stopped_by,
                      .units = {},
                      .ms = found.use.recompute_ms,
                      .bound_ms = found.bound_ms,
                      .engine = "labels",
                      .nodes = found.nodes,
                      .rows = found.rows,
                      .columns = found.columns,
                      .seconds = found.seconds};
  outcome.modules = DecodeUnits(problem, built, found.modules);
  outcome.units.modules = found.modules;
  return outcome;
}

// Of a problem that is no trace problem.
const ModuleProblem& ModulesOf(const PlanningProblem& problem) {
  const auto* joint = std::get_if<BuiltJointProblem>(&problem.built);
  return joint ? joint->problem.relaxed
               : std::get<BuiltModuleProblem>(problem.built).problem;
}

// Modules with ratios on the convex hull of their policies.
BuiltModuleProblem OnHulls(const Profile& profile, const ModuleTree& tree,
                           BuiltJointProblem joint) {
  BuiltModuleProblem built{.problem = std::move(joint.problem.relaxed),
                           .scales = {},
                           .warnings = std::move(joint.warnings)};
  built.scales.resize(tree.size());
  for (int i = 0; i < tree.size(); ++i) {
    if (built.problem.nodes[i].curve.empty()) continue;
    const int64_t total = joint.groups[i].TotalBytes();
    const int64_t internal =
        profile.modules[tree.node(i).module].act_fw_per_module;
    built.scales[i] = {
        .internal_bytes = static_cast<double>(std::min(internal, total)),
        .sac_bytes = static_cast<double>(total),
        .held_bytes = built.problem.nodes[i].held_bytes};
  }
  return built;
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

std::optional<std::string> LimitName(StoppedBy stopped_by) {
  switch (stopped_by) {
    case StoppedBy::kTime:
      return "time";
    case StoppedBy::kGap:
      return "gap";
    case StoppedBy::kNodes:
      return "nodes";
    case StoppedBy::kMemory:
      return "memory";
    case StoppedBy::kUnproven:
      return "unproven";
    case StoppedBy::kInterrupt:
      return "interrupted";
    case StoppedBy::kNothing:
      break;
  }
  return std::nullopt;
}

std::string_view ToString(Granularity granularity) {
  return granularity == Granularity::kModule ? "module" : "operator";
}

std::optional<Granularity> ParseGranularity(std::string_view name) {
  for (const Granularity g : {Granularity::kModule, Granularity::kOperator}) {
    if (ToString(g) == name) return g;
  }
  return std::nullopt;
}

std::string_view ToString(Tradeoff tradeoff) {
  switch (tradeoff) {
    case Tradeoff::kFit:
      return "fit";
    case Tradeoff::kProfile:
      return "profile";
    case Tradeoff::kPareto:
      break;
  }
  return "pareto";
}

std::optional<Tradeoff> ParseTradeoff(std::string_view name) {
  for (const Tradeoff t :
       {Tradeoff::kPareto, Tradeoff::kFit, Tradeoff::kProfile}) {
    if (ToString(t) == name) return t;
  }
  return std::nullopt;
}

const std::vector<std::string>& PlanningProblem::warnings() const {
  return std::visit(
      [](const auto& b) -> const std::vector<std::string>& {
        return b.warnings;
      },
      built);
}

PlanningProblem BuildPlanningProblem(const Profile& profile,
                                     const ModuleTree& tree,
                                     const PlanOptions& options,
                                     const graph::Trace* trace) {
  CheckOptions(options);
  PlanningProblem problem{
      .profile = &profile,
      .tree = &tree,
      .options = options,
      .trace = trace,
      .built = {},
      .baseline = ComputeBaseline(profile, tree, options.memory, trace),
      .unplanned_peak_bytes =
          ComputeEffect(profile, {}, options.memory, "pareto", trace)
              .peak_bytes};
  if (options.memory.model == MemoryModel::kTrace) {
    CheckTraceOptions(options);
    problem.built = BuildTraceProblem(*trace, profile, tree,
                                      {.memory = options.memory,
                                       .ac_units = options.ac_units,
                                       .fsdp_units = options.fsdp_units,
                                       .max_units = options.max_units,
                                       .patterns = options.patterns});
    return problem;
  }
  if (options.tradeoff == Tradeoff::kPareto) {
    BuiltJointProblem joint =
        BuildJointProblem(profile, tree,
                          {.memory = options.memory,
                           .ac_units = options.ac_units,
                           .fsdp_units = options.fsdp_units,
                           .max_units = options.max_units,
                           .patterns = options.patterns});
    if (options.granularity == Granularity::kOperator) {
      problem.built = std::move(joint);
    } else {
      problem.built = OnHulls(profile, tree, std::move(joint));
    }
  } else {
    problem.built = BuildModuleProblem(
        profile, tree,
        {.memory = options.memory,
         .ac_units = options.ac_units,
         .fsdp_units = options.fsdp_units,
         .max_units = options.max_units,
         .bound_by_forced_saves = options.memory.model != MemoryModel::kTorch ||
                                  options.tradeoff != Tradeoff::kProfile,
         .fit_anew = options.tradeoff == Tradeoff::kFit});
  }
  CheckEngine(ModulesOf(problem), options.engine);
  return problem;
}

LeastAnswer LeastPlan(const PlanningProblem& problem,
                      const solver::SearchLimits& limits) {
  LeastAnswer least;
  if (const auto* traced = std::get_if<TraceProblem>(&problem.built)) {
    TraceMinimum found = FindLeastPlan(*traced, limits);
    least.budget = found.budget;
    least.has_plan = true;
    least.units.modules = std::move(found.modules);
  } else {
    least.budget = FindMinimumBudget(ModulesOf(problem), limits);
  }
  for (int64_t* bytes : {&least.budget.bytes, &least.budget.bound_bytes}) {
    *bytes = std::max<int64_t>(1, *bytes) + problem.options.reserve_bytes;
  }
  return least;
}

MinimumBudget LeastBudget(const PlanningProblem& problem,
                          const solver::SearchLimits& limits) {
  return LeastPlan(problem, limits).budget;
}

PlanAnswer PlanFor(const PlanningProblem& problem, int64_t budget_bytes,
                   const solver::SearchLimits& limits,
                   const KnownUnits& known) {
  PlanOptions options = problem.options;
  options.budget_bytes = budget_bytes;
  CheckBudget(options);
  const Profile& profile = *problem.profile;
  PlanAnswer answer;
  Plan& plan = answer.plan;
  plan.model = profile.model.name;
  plan.budget_bytes = options.budget_bytes;
  plan.reserve_bytes = options.reserve_bytes;
  plan.memory = options.memory;
  plan.granularity = ToString(options.granularity);
  plan.tradeoff = ToString(options.tradeoff);
  plan.baseline = problem.baseline;

  const int64_t usable = options.budget_bytes - options.reserve_bytes;
  Outcome outcome = std::visit(
      [&](const auto& built) {
        return Solve(problem, built, usable, limits, known);
      },
      problem.built);
  const ModuleSolution& solution = outcome.solution;
  plan.status = ToPlanStatus(solution.status);
  plan.limit = LimitName(solution.stopped_by);
  plan.solver = {.name = solution.engine,
                 .seconds = solution.seconds,
                 .nodes = solution.nodes,
                 .rows = solution.rows,
                 .columns = solution.columns};
  if (plan.status == PlanStatus::kInfeasible) {
    solver::SearchLimits left = limits;
    left.time_limit_s =
        std::max(kLeastSeconds, limits.time_limit_s - solution.seconds);
    left.gap = 0;
    const MinimumBudget minimum = LeastBudget(problem, left);
    if (minimum.proven && minimum.bytes <= options.budget_bytes) {
      throw std::logic_error(fmt::format(
          "engine {} calls a budget infeasible that a plan meets: {} bytes",
          solution.engine, options.budget_bytes));
    }
    if (minimum.proven) {
      plan.minimum_budget_bytes = minimum.bytes;
    } else if (minimum.bytes > options.budget_bytes) {
      plan.fitting_budget_bytes = minimum.bytes;
    }
    return answer;
  }
  if (!plan.HasPlan()) return answer;

  answer.units = std::move(outcome.units);
  plan.modules = std::move(outcome.modules);
  const PlanEffect effect = ComputeEffect(profile, plan.modules, options.memory,
                                          plan.tradeoff, problem.trace);
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
                       .max_units = options.max_units,
                       .patterns = options.patterns},
                      problem.trace);
  if (!broken &&
      plan.recompute_ms > solution.ms + 1e-6 * std::max(1.0, solution.ms)) {
    broken = fmt::format("it recomputes {} ms, the engine says {} ms",
                         plan.recompute_ms, solution.ms);
  }
  if (broken) {
    throw std::logic_error("the plan fails its check: " + *broken);
  }
  return answer;
}

PlanResult MakePlan(const Profile& profile, const ModuleTree& tree,
                    const PlanOptions& options, const graph::Trace* trace) {
  CheckBudget(options);
  const PlanningProblem problem =
      BuildPlanningProblem(profile, tree, options, trace);
  return {.plan = PlanFor(problem, options.budget_bytes, options.limits).plan,
          .warnings = problem.warnings()};
}

}  // namespace acplan::problems
