#include "problems/segment_plans.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <variant>

#include "graph/trace/aggregate.h"
#include "graph/trace/allocation.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/trace/relaxation/near_plans.h"

// The best plan of all families is proven best: a plan of any family costs at
// least that family's bound, so at least the least of the bounds. If no family
// has a plan, there is none.

namespace acplan::problems {

using graph::ModuleRun;
using graph::Trace;

namespace {

bool IsNumbered(std::string_view fqn) {
  const std::string_view name = fqn.substr(fqn.rfind('.') + 1);
  return !name.empty() &&
         std::ranges::all_of(name, [](char c) { return c >= '0' && c <= '9'; });
}

bool HasName(const Trace& trace, const graph::ModuleNames& names,
             const ModuleRun& run) {
  return graph::RunNamed(names, graph::SegmentName(trace, run)) == run;
}

// Returns the runs of `length` children, twice as many and so on, or, if not
// `doubles`, of `length` children only.
std::vector<ModuleRun> FamilyOf(
    const Trace& trace,
    const std::vector<std::vector<graph::ModuleId>>& longest, int64_t length,
    bool doubles) {
  const graph::ModuleNames names(trace);
  std::vector<ModuleRun> family;
  std::set<std::pair<graph::ModuleId, graph::ModuleId>> ends;
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
        const bool is_new = ends.emplace(run.first, run.last).second;
        if (is_new && HasName(trace, names, run)) family.push_back(run);
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

bool IsBetter(const Plan& plan, const Plan& other) {
  if (plan.HasPlan() != other.HasPlan()) return plan.HasPlan();
  return plan.HasPlan() && plan.recompute_ms < other.recompute_ms;
}

// Returns the least of a member over all families if all families have it.
std::optional<int64_t> LeastOf(const std::vector<Plan>& plans,
                               std::optional<int64_t> Plan::*bytes) {
  std::optional<int64_t> least = plans.front().*bytes;
  for (const Plan& plan : plans) {
    if (!(plan.*bytes)) return std::nullopt;
    least = std::min(*least, *(plan.*bytes));
  }
  return least;
}

// Returns the best plan, with the status, bound and effort of all families.
Plan Together(const Plan& best, const std::vector<Plan>& plans) {
  // Costs this close are equal but for the tolerance of the engine.
  constexpr double kTolerance = 1e-9;
  Plan plan = best;
  bool is_proven = true;
  plan.solver = {.name = best.solver.name};
  for (const Plan& family_plan : plans) {
    plan.solver.seconds += family_plan.solver.seconds;
    plan.solver.nodes += family_plan.solver.nodes;
    plan.solver.rows += family_plan.solver.rows;
    plan.solver.columns += family_plan.solver.columns;
    const bool is_no_better =
        best.HasPlan() &&
        family_plan.bound_ms >= best.recompute_ms * (1 - kTolerance);
    if (is_no_better || family_plan.status == PlanStatus::kInfeasible) continue;
    is_proven = false;
    if (!plan.limit) plan.limit = family_plan.limit;
    if (best.HasPlan()) {
      plan.bound_ms = std::min(plan.bound_ms, family_plan.bound_ms);
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
  for (const Plan& family_plan : plans) {
    for (const auto& bytes :
         {family_plan.minimum_budget_bytes, family_plan.fitting_budget_bytes}) {
      if (!bytes) continue;
      plan.fitting_budget_bytes =
          std::min(plan.fitting_budget_bytes.value_or(*bytes), *bytes);
    }
  }
  return plan;
}

// Returns a family's share of the remaining limits. Each of the `families`
// still to come gets as much time.
solver::SearchLimits ShareOf(const solver::SearchLimits& limits, double seconds,
                             size_t families) {
  solver::SearchLimits share = solver::LeftOf(limits, seconds);
  share.time_limit_s /= static_cast<double>(families);
  return share;
}

// Returns the least budget of families so far, without the reserve.
double UsableBytes(const PlanningProblem& problem,
                   const std::vector<LeastAnswer>& answers) {
  const LeastAnswer& least = *std::ranges::min_element(
      answers, {},
      [](const LeastAnswer& answer) { return answer.budget.bytes; });
  return static_cast<double>(least.budget.bytes -
                             problem.options.reserve_bytes);
}

// Returns the same units in another family, or none if that family lacks one of
// them.
KnownUnits MovedUnits(const KnownUnits& units, const graph::Trace& from,
                      const graph::Trace& to) {
  KnownUnits moved_units;
  const graph::ModuleNames names(to);
  for (graph::CheckpointedModule unit : units.modules) {
    unit.module = names.Find(from.modules[unit.module].fqn);
    if (unit.module == graph::kNone) return {};
    moved_units.modules.push_back(std::move(unit));
  }
  return moved_units;
}

// Returns the units that recompute less within the budget; none if neither fit.
KnownUnits CheaperOf(const PlanningProblem& problem, int64_t budget_bytes,
                     KnownUnits first, const KnownUnits& second) {
  const int64_t usable = budget_bytes - problem.options.reserve_bytes;
  BestPlan best(std::get<TraceProblem>(problem.formulation),
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
  std::set<std::pair<graph::ModuleId, graph::ModuleId>> of_two;
  for (const ModuleRun& run : families.front()) {
    of_two.emplace(run.first, run.last);
  }
  const bool has_more =
      std::ranges::any_of(of_three, [&](const ModuleRun& run) {
        return !of_two.contains({run.first, run.last});
      });
  if (has_more) families.push_back(std::move(of_three));
  return families;
}

TraceWithRuns::TraceWithRuns(const Trace& plain,
                             const std::vector<ModuleRun>& family)
    : trace(graph::WithSegments(plain, family)),
      profile(graph::Aggregate(trace)),
      tree(profile) {}

FamilyProblem BuildFamily(const Trace& plain,
                          const std::vector<ModuleRun>& family,
                          const PlanOptions& options) {
  auto runs = std::make_unique<const TraceWithRuns>(plain, family);
  PlanningProblem problem =
      BuildPlanningProblem(runs->profile, runs->tree, options, &runs->trace);
  return {.runs = std::move(runs), .problem = std::move(problem)};
}

Families BuildFamilies(const Trace& trace, const PlanOptions& options,
                       const SegmentChoice& choice) {
  Families families;
  for (const std::vector<ModuleRun>& family : SegmentFamilies(trace, choice)) {
    families.push_back(BuildFamily(trace, family, options));
  }
  return families;
}

KnownUnits UnitsIn(const FamilyProblem& family, const Plan& plan) {
  KnownUnits known_units;
  const Trace& trace = *family.problem.trace;
  const graph::ModuleNames names(trace);
  const auto is_there = [&](const PlannedModule& unit) {
    return names.Find(unit.fqn) != graph::kNone;
  };
  if (plan.HasPlan() && std::ranges::all_of(plan.modules, is_there)) {
    known_units.modules = CheckpointedModules(trace, plan.modules);
  }
  return known_units;
}

LeastOfFamilies LeastPlan(const Families& families,
                          const solver::SearchLimits& limits) {
  if (families.size() == 1) {
    LeastAnswer least = LeastPlan(families.front().problem, limits);
    return {.least = least, .of_family = {std::move(least)}};
  }
  const solver::Stopwatch stopwatch;
  LeastOfFamilies answer;
  for (size_t f = 0; f < families.size(); ++f) {
    const PlanningProblem& problem = families[f].problem;
    solver::SearchLimits share =
        ShareOf(limits, stopwatch.Seconds(), families.size() - f);
    if (f > 0) share.cut_off = UsableBytes(problem, answer.of_family);
    answer.of_family.push_back(LeastPlan(
        problem, share,
        f == 0 ? KnownUnits()
               : MovedUnits(answer.of_family.front().units,
                            *families.front().problem.trace, *problem.trace)));
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

LeastUnits UnitsOf(const Families& families, const LeastOfFamilies& least) {
  for (size_t f = 0; f < families.size(); ++f) {
    const LeastAnswer& answer = least.of_family[f];
    if (answer.has_plan && answer.budget.bytes == least.least.budget.bytes) {
      return {.trace = families[f].problem.trace,
              .modules = answer.units.modules};
    }
  }
  return {.trace = families.front().problem.trace,
          .modules = least.least.units.modules};
}

PlanOfFamilies PlanFor(const Families& families, int64_t budget_bytes,
                       const solver::SearchLimits& limits,
                       const std::vector<LeastAnswer>& known_answers,
                       const std::vector<SearchSeries>& series) {
  const auto series_of = [&](size_t f) {
    return series.empty() ? SearchSeries() : series[f];
  };
  if (families.size() == 1) {
    KnownUnits units =
        known_answers.empty() ? KnownUnits() : known_answers.front().units;
    units.series = series_of(0);
    PlanAnswer only =
        PlanFor(families.front().problem, budget_bytes, limits, units);
    return {.plan = std::move(only.plan), .near = {std::move(only.near)}};
  }
  const solver::Stopwatch stopwatch;
  PlanOfFamilies best;
  std::vector<Plan> plans;
  for (size_t f = 0; f < families.size(); ++f) {
    const PlanningProblem& problem = families[f].problem;
    KnownUnits units = UnitsIn(families[f], best.plan);
    if (f < known_answers.size()) {
      units = CheaperOf(problem, budget_bytes, std::move(units),
                        known_answers[f].units);
    }
    // True of the plan of the first family, which has all modules.
    units.beats_plans_without_skips = f > 0 && best.plan.HasPlan();
    units.series = series_of(f);
    solver::SearchLimits share =
        ShareOf(limits, stopwatch.Seconds(), families.size() - f);
    if (best.plan.HasPlan()) share.cut_off = best.plan.recompute_ms;
    PlanAnswer of_family = PlanFor(problem, budget_bytes, share, units);
    best.near.push_back(std::move(of_family.near));
    plans.push_back(std::move(of_family.plan));
    if (f == 0 || IsBetter(plans.back(), best.plan)) {
      best.plan = plans.back();
      best.family = f;
    }
  }
  best.plan = Together(best.plan, plans);
  return best;
}

}  // namespace acplan::problems
