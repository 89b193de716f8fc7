#include "problems/planner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <utility>

#include "graph/base/flag.h"
#include "graph/trace/allocation.h"
#include "problems/check/plan_check.h"
#include "problems/decode_plan.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/engines/labels/module_labels.h"
#include "problems/engines/milp/joint_milp.h"
#include "problems/engines/milp/module_milp.h"
#include "problems/engines/minimum_budget.h"
#include "problems/model/joint_solution.h"
#include "problems/model/module_problem.h"
#include "problems/model/module_solution.h"
#include "problems/plan/baseline.h"
#include "problems/plan/plan_host.h"
#include "problems/plan/plan_streams.h"
#include "problems/trace/relaxation/near_plans.h"
#include "problems/trace/trace_least_budget.h"

namespace acplan::problems {

using graph::CheckpointedModule;
using graph::ModuleTree;
using graph::Profile;
using solver::SearchStatus;
using solver::StoppedBy;

namespace {

// The least time of the search for the least budget that a plan fits, whatever the limit,
// and its time if there is no limit.
constexpr double kLeastSeconds = 1;
constexpr double kSecondsWithoutLimit = 10;
// A share of the step's time: what costs no more costs nothing, but for rounding.
constexpr double kNothing = 1e-12;
// A share of the time, the most.
constexpr double kShareWithoutSkips = .125;

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

// The units that keep every record of the problem, or none.
std::vector<ChosenUnit> Fitting(const ModuleProblem& problem,
                                const std::vector<ChosenUnit>& units) {
  return !units.empty() && SolutionPeak(problem, units) <= problem.budget_bytes
             ? units
             : std::vector<ChosenUnit>();
}

// CBC takes no start.
ModuleSolution NoWorseThan(const std::vector<ChosenUnit>& known_units,
                           double known_ms, ModuleSolution solution) {
  if (known_units.empty() || solution.status == SearchStatus::kInfeasible ||
      solution.ms <= known_ms) {
    return solution;
  }
  if (solution.status == SearchStatus::kNoSolution) {
    solution.status = SearchStatus::kFeasible;
  }
  solution.units = known_units;
  solution.ms = known_ms;
  solution.bound_ms = std::min(solution.bound_ms, known_ms);
  return solution;
}

// An engine's answer, and how to read it.
struct Outcome {
  ModuleSolution solution;
  std::vector<PlannedModule> modules;
  KnownUnits units;
  std::vector<NearPlan> near = {};
};

Outcome Solve(const PlanningProblem& problem, BuiltModuleProblem formulation,
              int64_t usable_bytes, const solver::SearchLimits& limits,
              const KnownUnits& known_units) {
  formulation.problem.budget_bytes = static_cast<double>(usable_bytes);
  const std::vector<ChosenUnit> fitting =
      Fitting(formulation.problem, known_units.units);
  Outcome outcome;
  outcome.solution =
      TakesLabels(formulation.problem, problem.options.engine)
          ? SolveByLabels(formulation.problem, limits, fitting)
          : NoWorseThan(fitting, SolutionCost(formulation.problem, fitting),
                        SolveByCbc(formulation.problem, limits));
  for (const ChosenUnit& unit : outcome.solution.units) {
    outcome.modules.push_back(
        DecodeModule(*problem.profile, *problem.tree, formulation, unit));
  }
  outcome.units.units = outcome.solution.units;
  return outcome;
}

Outcome Solve(const PlanningProblem& problem, BuiltJointProblem formulation,
              int64_t usable_bytes, const solver::SearchLimits& limits,
              const KnownUnits& known_units) {
  ModuleProblem& relaxed = formulation.problem.relaxed;
  relaxed.budget_bytes = static_cast<double>(usable_bytes);
  const std::vector<ChosenUnit> fitting = Fitting(relaxed, known_units.units);
  Outcome outcome;
  outcome.solution =
      TakesLabels(relaxed, problem.options.engine)
          ? SolveJointByLabels(formulation.problem, limits, fitting)
          : NoWorseThan(fitting, JointCost(formulation.problem, fitting),
                        SolveJointByCbc(formulation.problem, limits));
  for (const ChosenUnit& unit : outcome.solution.units) {
    outcome.modules.push_back(
        DecodeUnit(*problem.profile, *problem.tree, formulation, unit));
  }
  outcome.units.units = outcome.solution.units;
  return outcome;
}

// Units that may skip, and save no more than those that do not.
std::vector<CheckpointedModule> NeedDriven(
    const TraceProblem& formulation, std::vector<CheckpointedModule> units) {
  for (CheckpointedModule& unit : units) {
    if (unit.decisions.empty()) continue;
    std::vector<graph::Flag> saves;
    for (const graph::OperatorDecision decision : unit.decisions) {
      saves.push_back(decision == graph::OperatorDecision::kSave);
    }
    unit = formulation.need_driven->PolicyFor(unit.module, saves);
  }
  return units;
}

// The limits of a search for where to start, which takes a moment. It has nodes of
// its own: a plan that may skip is no worse than one that may not, however few nodes
// there are for finding it.
solver::SearchLimits LimitsOfStart(solver::SearchLimits limits) {
  limits.time_limit_s =
      std::min(limits.time_limit_s * kShareWithoutSkips, kLeastSeconds);
  limits.node_limit = solver::SearchLimits().node_limit;
  limits.on_progress = nullptr;
  return limits;
}

// The units to start from: the known ones, or those of the best plan that skips
// nothing, need-driven, which takes a moment to find.
std::vector<CheckpointedModule> StartOf(const PlanningProblem& problem,
                                        const TraceProblem& formulation,
                                        int64_t usable_bytes,
                                        const solver::SearchLimits& limits,
                                        const KnownUnits& known_units) {
  if (!problem.without_skips || known_units.beats_plans_without_skips) {
    return known_units.modules;
  }
  BestPlan best(formulation, graph::WholeAllocations(usable_bytes));
  best.Try({});
  if (!known_units.modules.empty()) best.Try(known_units.modules);
  const bool is_stopped =
      solver::LimitClock(limits).Stop() != StoppedBy::kNothing;
  if (is_stopped || (best.is_found() && best.IsAsGoodAs(0))) {
    return best.modules();
  }
  best.Try(NeedDriven(formulation,
                      SolveTraceProblem(*problem.without_skips, usable_bytes,
                                        LimitsOfStart(limits))
                          .modules));
  return best.modules();
}

// The least budget of plans that may skip, which is no more than what is found
// without skips.
TraceMinimum LeastOf(const PlanningProblem& problem,
                     const TraceProblem& formulation,
                     const solver::SearchLimits& limits,
                     std::vector<CheckpointedModule> known_units) {
  if (!problem.without_skips)
    return SearchLeastPlan(formulation, limits, known_units);
  const solver::LimitClock clock(limits);
  if (known_units.empty() && clock.Stop() == StoppedBy::kNothing) {
    known_units = NeedDriven(
        formulation,
        FindLeastPlan(*problem.without_skips, LimitsOfStart(limits)).modules);
  }
  return SearchLeastPlan(formulation, clock.Remaining(), known_units);
}

Outcome Solve(const PlanningProblem& problem, const TraceProblem& formulation,
              int64_t usable_bytes, const solver::SearchLimits& limits,
              const KnownUnits& known_units) {
  const solver::Stopwatch stopwatch;
  const std::vector<CheckpointedModule> start =
      StartOf(problem, formulation, usable_bytes, limits, known_units);
  TraceSolution solution = SolveTraceProblem(
      formulation, usable_bytes, solver::LeftOf(limits, stopwatch.Seconds()),
      start, known_units.series);
  solution.seconds = stopwatch.Seconds();
  Outcome outcome;
  outcome.solution = {.status = solution.status,
                      .stopped_by = solution.stopped_by,
                      .units = {},
                      .ms = solution.use.recompute_ms,
                      .bound_ms = solution.bound_ms,
                      .engine = "labels",
                      .nodes = solution.nodes,
                      .rows = solution.rows,
                      .columns = solution.columns,
                      .seconds = solution.seconds};
  outcome.modules = DecodeUnits(*problem.profile, *problem.tree, formulation,
                                solution.modules);
  outcome.units.modules = std::move(solution.modules);
  outcome.near = std::move(solution.near);
  return outcome;
}

// Returns the forest of a problem that is no trace problem.
const ModuleProblem& ModulesOf(const PlanningProblem& problem) {
  if (const auto* joint = std::get_if<BuiltJointProblem>(&problem.formulation))
    return joint->problem.relaxed;
  return std::get<BuiltModuleProblem>(problem.formulation).problem;
}

// Modules with ratios on the convex hull of their policies.
BuiltModuleProblem OnHulls(const Profile& profile, const ModuleTree& tree,
                           BuiltJointProblem joint) {
  BuiltModuleProblem formulation{.problem = std::move(joint.problem.relaxed),
                                 .scales = {},
                                 .warnings = std::move(joint.warnings)};
  formulation.scales.resize(tree.size());
  for (int i = 0; i < tree.size(); ++i) {
    if (formulation.problem.nodes[i].curve.empty()) continue;
    const int64_t total = joint.groups[i].TotalBytes();
    const int64_t internal =
        profile.modules[tree.node(i).module].act_fw_per_module;
    formulation.scales[i] = {
        .internal_bytes = static_cast<double>(std::min(internal, total)),
        .sac_bytes = static_cast<double>(total),
        .held_bytes = formulation.problem.nodes[i].held_bytes};
  }
  return formulation;
}

// Returns a plan that says only what was asked.
Plan PlanOfQuestion(const PlanningProblem& problem,
                    const PlanOptions& options) {
  Plan plan;
  plan.model = problem.profile->model.name;
  plan.time_errors = problem.profile->device.time_errors;
  plan.budget_bytes = options.budget_bytes;
  plan.reserve_bytes = options.reserve_bytes;
  plan.memory = options.memory;
  plan.granularity = ToString(options.granularity);
  plan.tradeoff = ToString(options.tradeoff);
  plan.baseline = problem.baseline;
  return plan;
}

// The plan that says what would fit.
Plan WithFittingBudget(const PlanningProblem& problem, Plan plan,
                       solver::SearchLimits limits) {
  limits.time_limit_s =
      std::isinf(limits.time_limit_s)
          ? kSecondsWithoutLimit
          : std::max(kLeastSeconds, limits.time_limit_s - plan.solver.seconds);
  limits.gap = 0;
  limits.cut_off = solver::SearchLimits().cut_off;
  const MinimumBudget minimum = LeastPlan(problem, limits).budget;
  if (minimum.proven && minimum.bytes <= plan.budget_bytes) {
    throw std::logic_error(fmt::format(
        "engine {} calls a budget infeasible that a plan meets: {} bytes",
        plan.solver.name, plan.budget_bytes));
  }
  if (minimum.proven) {
    plan.minimum_budget_bytes = minimum.bytes;
  } else if (minimum.bytes > plan.budget_bytes) {
    plan.fitting_budget_bytes = minimum.bytes;
  }
  return plan;
}

// Returns the plan with what it does. `bound_ms`: the engine's.
Plan WithEffect(const PlanningProblem& problem, Plan plan, double bound_ms) {
  const PlanEffect effect =
      ComputeEffect(*problem.profile, plan.modules, plan.memory, plan.tradeoff,
                    problem.trace);
  plan.recompute_ms = effect.recompute_ms;
  if (plan.offload) plan.offload = OffloadEffect(*problem.trace, plan);
  const double cost_ms = plan.CostMs();
  plan.bound_ms = plan.status == PlanStatus::kOptimal
                      ? cost_ms
                      : std::min(bound_ms, cost_ms);
  plan.gap = cost_ms > 0 ? (cost_ms - plan.bound_ms) / cost_ms : 0;
  plan.peak_bytes = effect.peak_bytes;
  plan.peak_module = effect.peak_module;
  if (const auto* on_trace = std::get_if<TraceProblem>(&problem.formulation)) {
    plan.host = HostOf(*problem.trace, on_trace->simulator, plan);
    plan.streams = StreamsOf(*problem.trace, on_trace->simulator, plan);
  }
  plan.overhead = OverheadOf(plan);
  return plan;
}

// Throws std::logic_error where the plan breaks a rule or is worse than its engine
// says.
void CheckPlan(const PlanningProblem& problem, const PlanOptions& options,
               const Plan& plan, double engine_ms) {
  std::optional<std::string> broken =
      FirstBrokenRule(*problem.profile, plan,
                      {.ac_units = options.ac_units,
                       .fsdp_units = options.fsdp_units,
                       .max_units = options.max_units,
                       .patterns = options.patterns},
                      problem.trace);
  if (!broken &&
      plan.recompute_ms > engine_ms + 1e-6 * std::max(1.0, engine_ms)) {
    broken = fmt::format("it recomputes {} ms, the engine says {} ms",
                         plan.recompute_ms, engine_ms);
  }
  if (broken) {
    throw std::logic_error("the plan fails its check: " + *broken);
  }
}

}  // namespace

const std::vector<std::string>& PlanningProblem::warnings() const {
  return std::visit(
      [](const auto& b) -> const std::vector<std::string>& {
        return b.warnings;
      },
      formulation);
}

JointProblemOptions TraceOptionsOf(const PlanOptions& options) {
  return {.memory = options.memory,
          .ac_units = options.ac_units,
          .fsdp_units = options.fsdp_units,
          .max_units = options.max_units,
          .patterns = options.patterns,
          .may_skip = options.may_skip};
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
      .formulation = {},
      .baseline = ComputeBaseline(profile, tree, options.memory, trace),
      .unplanned_peak_bytes =
          ComputeEffect(profile, {}, options.memory, "pareto", trace)
              .peak_bytes};
  if (options.memory.model == MemoryModel::kTrace) {
    CheckTraceOptions(options);
    JointProblemOptions of_trace = TraceOptionsOf(options);
    problem.formulation = BuildTraceProblem(*trace, profile, tree, of_trace);
    if (options.may_skip) {
      of_trace.may_skip = false;
      problem.without_skips =
          BuildTraceProblem(*trace, profile, tree, of_trace);
    }
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
      problem.formulation = std::move(joint);
    } else {
      problem.formulation = OnHulls(profile, tree, std::move(joint));
    }
  } else {
    problem.formulation = BuildModuleProblem(
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
                      const solver::SearchLimits& limits,
                      const KnownUnits& known_units) {
  LeastAnswer least;
  if (const auto* traced = std::get_if<TraceProblem>(&problem.formulation)) {
    TraceMinimum minimum =
        LeastOf(problem, *traced, limits, known_units.modules);
    least.budget = minimum.budget;
    least.has_plan = true;
    least.units.modules = std::move(minimum.modules);
  } else {
    least.budget = FindMinimumBudget(ModulesOf(problem), limits);
  }
  for (int64_t* bytes : {&least.budget.bytes, &least.budget.bound_bytes}) {
    *bytes = std::max<int64_t>(1, *bytes) + problem.options.reserve_bytes;
  }
  return least;
}

PlanAnswer PlanFor(const PlanningProblem& problem, int64_t budget_bytes,
                   const solver::SearchLimits& limits,
                   const KnownUnits& known_units) {
  PlanOptions options = problem.options;
  options.budget_bytes = budget_bytes;
  CheckBudget(options);
  const int64_t usable = options.budget_bytes - options.reserve_bytes;
  Outcome outcome = std::visit(
      [&](const auto& formulation) {
        return Solve(problem, formulation, usable, limits, known_units);
      },
      problem.formulation);
  const ModuleSolution& solution = outcome.solution;
  PlanAnswer answer{.plan = PlanOfQuestion(problem, options),
                    .units = {},
                    .near = std::move(outcome.near)};
  Plan& plan = answer.plan;
  plan.status = ToPlanStatus(solution.status);
  plan.limit = LimitName(solution.stopped_by);
  plan.solver = {.name = solution.engine,
                 .seconds = solution.seconds,
                 .nodes = solution.nodes,
                 .rows = solution.rows,
                 .columns = solution.columns};
  if (plan.status == PlanStatus::kInfeasible) {
    plan = WithFittingBudget(problem, std::move(plan), limits);
  }
  const bool is_cut_off =
      plan.status == PlanStatus::kNoPlan && std::isfinite(limits.cut_off);
  if (is_cut_off) plan.bound_ms = solution.bound_ms;
  if (!plan.HasPlan()) return answer;
  answer.units = std::move(outcome.units);
  plan.modules = std::move(outcome.modules);
  plan = WithEffect(problem, std::move(plan), solution.bound_ms);
  CheckPlan(problem, options, plan, solution.ms);
  return answer;
}

Plan PlanOfUnits(const PlanningProblem& problem, Plan plan,
                 const std::vector<graph::CheckpointedModule>& units) {
  PlanOptions options = problem.options;
  options.budget_bytes = plan.budget_bytes;
  plan.status = PlanStatus::kFeasible;
  plan.limit = LimitName(StoppedBy::kUnproven);
  plan.minimum_budget_bytes.reset();
  plan.fitting_budget_bytes.reset();
  plan.any_schedule.reset();
  plan.times_off.reset();
  plan.modules =
      DecodeUnits(*problem.profile, *problem.tree,
                  std::get<TraceProblem>(problem.formulation), units);
  plan = WithEffect(problem, std::move(plan), 0);
  if (plan.CostMs() <= kNothing * plan.baseline.runtime_ms) {
    plan.status = PlanStatus::kOptimal;
    plan.limit = LimitName(StoppedBy::kNothing);
    plan.bound_ms = plan.CostMs();
    plan.gap = 0;
  }
  CheckPlan(problem, options, plan, plan.recompute_ms);
  return plan;
}

Plan PlanWithoutAnswer(const PlanningProblem& problem, int64_t budget_bytes,
                       StoppedBy stopped_by) {
  PlanOptions options = problem.options;
  options.budget_bytes = budget_bytes;
  Plan plan = PlanOfQuestion(problem, options);
  plan.status = PlanStatus::kNoPlan;
  plan.limit = LimitName(stopped_by);
  return plan;
}

}  // namespace acplan::problems
