#include "problems/segment_plans.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>
#include <variant>

#include "graph/trace/aggregate.h"
#include "graph/trace/allocation.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/trace/relaxation/near_plans.h"

// The best of all families, proven: a plan of any family costs no less than that
// family's bound, so no less than the least of the bounds; and where no family has
// a plan, there is none.

namespace acplan::problems {

using graph::ModuleRun;
using graph::Trace;

namespace {

bool IsNumbered(std::string_view fqn) {
  const std::string_view name = fqn.substr(fqn.rfind('.') + 1);
  return !name.empty() &&
         std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
}

bool HasName(const Trace& trace, const ModuleRun& run) {
  return graph::RunNamed(trace, graph::SegmentName(trace, run)) == run;
}

// The runs of `length`, twice that and so on, or of `length` only.
std::vector<ModuleRun> FamilyOf(
    const Trace& trace,
    const std::vector<std::vector<graph::ModuleId>>& longest, int64_t length,
    bool doubles) {
  std::vector<ModuleRun> family;
  for (const std::vector<graph::ModuleId>& children : longest) {
    if (!std::ranges::all_of(children, [&](graph::ModuleId m) {
          return IsNumbered(trace.modules[m].fqn);
        })) {
      continue;
    }
    const auto count = static_cast<int64_t>(children.size());
    for (int64_t size = length; size <= (count + 1) / 2; size *= 2) {
      for (int64_t first = 0; first + 1 < count; first += size) {
        const ModuleRun run = {
            .first = children[first],
            .last = children[std::min(first + size, count) - 1]};
        const bool is_new = std::ranges::find(family, run) == family.end();
        if (is_new && HasName(trace, run)) family.push_back(run);
      }
      if (!doubles) break;
    }
  }
  return family;
}

PlanStatus StatusOf(const Plan& best, bool is_proven) {
  if (!best.HasPlan()) {
    return is_proven ? PlanStatus::kInfeasible : PlanStatus::kNoPlan;
  }
  return is_proven ? PlanStatus::kOptimal : PlanStatus::kFeasible;
}

bool IsBetter(const Plan& plan, const Plan& than) {
  if (plan.HasPlan() != than.HasPlan()) return plan.HasPlan();
  return plan.HasPlan() && plan.recompute_ms < than.recompute_ms;
}

// The least of what is said of all families, where it is said of all.
std::optional<int64_t> LeastOf(const std::vector<Plan>& plans,
                               std::optional<int64_t> Plan::*bytes) {
  std::optional<int64_t> least = plans.front().*bytes;
  for (const Plan& plan : plans) {
    if (!(plan.*bytes)) return std::nullopt;
    least = std::min(*least, *(plan.*bytes));
  }
  return least;
}

// The best plan, with what holds of all.
Plan Together(const Plan& best, const std::vector<Plan>& plans) {
  // Equal but for the tolerance of the engine.
  constexpr double kTolerance = 1e-9;
  Plan plan = best;
  bool is_proven = true;
  plan.solver = {.name = best.solver.name};
  for (const Plan& of : plans) {
    plan.solver.seconds += of.solver.seconds;
    plan.solver.nodes += of.solver.nodes;
    plan.solver.rows += of.solver.rows;
    plan.solver.columns += of.solver.columns;
    const bool is_no_better =
        best.HasPlan() && of.HasPlan() &&
        of.bound_ms >= best.recompute_ms * (1 - kTolerance);
    if (is_no_better || of.status == PlanStatus::kInfeasible) continue;
    is_proven = false;
    if (!plan.limit) plan.limit = of.limit;
    if (best.HasPlan()) {
      plan.bound_ms = std::min(plan.bound_ms, of.HasPlan() ? of.bound_ms : 0);
    }
  }
  plan.status = StatusOf(best, is_proven);
  if (is_proven) plan.limit = std::nullopt;
  if (plan.HasPlan()) {
    if (is_proven) plan.bound_ms = plan.recompute_ms;
    plan.gap =
        plan.recompute_ms > 0 ? 1 - plan.bound_ms / plan.recompute_ms : 0;
    return plan;
  }
  plan.minimum_budget_bytes = LeastOf(plans, &Plan::minimum_budget_bytes);
  plan.fitting_budget_bytes = std::nullopt;
  if (plan.minimum_budget_bytes) return plan;
  for (const Plan& of : plans) {
    for (const auto& bytes :
         {of.minimum_budget_bytes, of.fitting_budget_bytes}) {
      if (!bytes) continue;
      plan.fitting_budget_bytes =
          std::min(plan.fitting_budget_bytes.value_or(*bytes), *bytes);
    }
  }
  return plan;
}

// What is left of the limits for a family, with as much time for each that is
// still to come.
solver::SearchLimits ShareOf(const solver::SearchLimits& limits, double seconds,
                             size_t families) {
  solver::SearchLimits share = solver::LeftOf(limits, seconds);
  share.time_limit_s /= static_cast<double>(families);
  return share;
}

// The same units in another family, or none where it does not have them.
KnownUnits Moved(const KnownUnits& units, const ProblemWithSegments& from,
                 const ProblemWithSegments& to) {
  KnownUnits moved;
  for (graph::CheckpointedModule unit : units.modules) {
    unit.module = FindModule(to.trace, from.trace.modules[unit.module].fqn);
    if (unit.module == graph::kNone) return {};
    moved.modules.push_back(std::move(unit));
  }
  return moved;
}

// Whichever recomputes less within the budget; none where both do not fit.
KnownUnits CheaperOf(const ProblemWithSegments& problem, int64_t budget_bytes,
                     KnownUnits first, const KnownUnits& second) {
  const int64_t usable = budget_bytes - problem.problem.options.reserve_bytes;
  BestPlan best(std::get<TraceProblem>(problem.problem.formulation),
                graph::WholeAllocations(usable));
  if (!first.modules.empty()) best.Try(first.modules);
  if (!second.modules.empty()) best.Try(second.modules);
  first.modules = best.modules();
  return first;
}

}  // namespace

std::vector<std::vector<ModuleRun>> SegmentFamilies(
    const Trace& trace, const SegmentChoice& choice) {
  if (choice.kind == SegmentKind::kNone) return {{}};
  const std::vector<std::vector<graph::ModuleId>> longest =
      graph::LongestRuns(trace);
  if (choice.kind == SegmentKind::kLength) {
    return {FamilyOf(trace, longest, choice.length, /*doubles=*/false)};
  }
  std::vector<std::vector<ModuleRun>> families = {
      FamilyOf(trace, longest, 2, /*doubles=*/true)};
  std::vector<ModuleRun> of_three =
      FamilyOf(trace, longest, 3, /*doubles=*/true);
  const bool has_more =
      std::ranges::any_of(of_three, [&](const ModuleRun& run) {
        return std::ranges::find(families.front(), run) ==
               families.front().end();
      });
  if (has_more) families.push_back(std::move(of_three));
  return families;
}

ProblemWithSegments::ProblemWithSegments(const Trace& plain,
                                         const std::vector<ModuleRun>& family,
                                         const PlanOptions& options)
    : trace(graph::WithSegments(plain, family)),
      profile(graph::Aggregate(trace)),
      tree(profile),
      problem(BuildPlanningProblem(profile, tree, options, &trace)) {}

KnownUnits UnitsIn(const ProblemWithSegments& problem, const Plan& plan) {
  KnownUnits known;
  const auto is_there = [&](const PlannedModule& unit) {
    return FindModule(problem.trace, unit.fqn) != graph::kNone;
  };
  if (plan.HasPlan() && std::ranges::all_of(plan.modules, is_there)) {
    known.modules = CheckpointedModules(problem.trace, plan.modules);
  }
  return known;
}

ProblemsWithSegments BuildProblemsWithSegments(const Trace& trace,
                                               const PlanOptions& options,
                                               const SegmentChoice& choice) {
  ProblemsWithSegments problems;
  for (const std::vector<ModuleRun>& family : SegmentFamilies(trace, choice)) {
    problems.push_back(
        std::make_unique<const ProblemWithSegments>(trace, family, options));
  }
  return problems;
}

LeastWithSegments LeastPlan(const ProblemsWithSegments& problems,
                            const solver::SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  LeastWithSegments answer;
  for (size_t f = 0; f < problems.size(); ++f) {
    answer.of_family.push_back(
        LeastPlan(problems[f]->problem,
                  ShareOf(limits, stopwatch.Seconds(), problems.size() - f),
                  f == 0 ? KnownUnits()
                         : Moved(answer.of_family.front().units,
                                 *problems.front(), *problems[f])));
  }
  answer.least = *std::ranges::min_element(
      answer.of_family, {},
      [](const LeastAnswer& least) { return least.budget.bytes; });
  MinimumBudget& budget = answer.least.budget;
  for (const LeastAnswer& least : answer.of_family) {
    budget.bound_bytes = std::min(budget.bound_bytes, least.budget.bound_bytes);
    if (least.budget.stopped_by != solver::StoppedBy::kNothing) {
      budget.stopped_by = least.budget.stopped_by;
    }
  }
  budget.proven = budget.bound_bytes == budget.bytes;
  if (budget.proven) budget.stopped_by = solver::StoppedBy::kNothing;
  return answer;
}

PlanWithSegments PlanFor(const ProblemsWithSegments& problems,
                         int64_t budget_bytes,
                         const solver::SearchLimits& limits,
                         const std::vector<LeastAnswer>& known) {
  const solver::Stopwatch stopwatch;
  PlanWithSegments best;
  std::vector<Plan> plans;
  for (size_t f = 0; f < problems.size(); ++f) {
    KnownUnits units = UnitsIn(*problems[f], best.plan);
    if (f < known.size()) {
      units = CheaperOf(*problems[f], budget_bytes, std::move(units),
                        known[f].units);
    }
    // As is the plan of the first family, which has all modules.
    units.beats_plans_without_skips = f > 0 && best.plan.HasPlan();
    plans.push_back(
        PlanFor(problems[f]->problem, budget_bytes,
                ShareOf(limits, stopwatch.Seconds(), problems.size() - f),
                units)
            .plan);
    if (f == 0 || IsBetter(plans.back(), best.plan)) {
      best = {.plan = plans.back(), .problem = problems[f].get()};
    }
  }
  best.plan = Together(best.plan, plans);
  return best;
}

}  // namespace acplan::problems
