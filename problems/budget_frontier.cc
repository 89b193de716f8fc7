#include "problems/budget_frontier.h"

#include <algorithm>
#include <utility>

namespace acplan::problems {

std::vector<int64_t> EvenBudgets(int64_t least, int64_t most, int points) {
  std::vector<int64_t> budgets{least};
  for (int k = 1; k < points; ++k) {
    const auto share = static_cast<long double>(k) / (points - 1);
    const int64_t budget =
        k + 1 == points
            ? most
            : least + static_cast<int64_t>(
                          share * static_cast<long double>(most - least));
    if (budget > budgets.back()) budgets.push_back(budget);
  }
  return budgets;
}

namespace {

// Returns a plan for a smaller budget as the answer for a larger one, for which there is
// no time to search. No bound is known there.
Plan ForLargerBudget(Plan plan, int64_t budget_bytes,
                     solver::StoppedBy stopped_by) {
  const bool is_optimal = plan.CostMs() <= 0;
  plan.budget_bytes = budget_bytes;
  plan.status = is_optimal ? PlanStatus::kOptimal : PlanStatus::kFeasible;
  plan.limit = LimitName(is_optimal ? solver::StoppedBy::kNothing : stopped_by);
  plan.bound_ms = 0;
  plan.gap = is_optimal ? 0 : 1;
  plan.any_schedule.reset();
  plan.times_off.reset();
  plan.solver = {.name = plan.solver.name};
  return plan;
}

// Plans within each budget. `plan_within(budget, limits)` plans for one budget
// and may use what it learned from the budgets before. No plan is needed from
// `unplanned_bytes` on.
std::vector<Plan> PlansWithin(
    std::vector<int64_t> budgets, int64_t unplanned_bytes,
    const solver::SearchLimits& limits,
    const std::function<void(size_t)>& on_plan,
    const std::function<Plan(int64_t, const solver::SearchLimits&)>&
        plan_within) {
  std::ranges::sort(budgets);
  const auto duplicates = std::ranges::unique(budgets);
  budgets.erase(duplicates.begin(), duplicates.end());
  const solver::LimitClock clock(limits);
  std::vector<Plan> plans;
  for (const int64_t budget : budgets) {
    const solver::StoppedBy stop = clock.Stop();
    if (stop != solver::StoppedBy::kNothing && budget < unplanned_bytes &&
        !plans.empty() && plans.back().HasPlan()) {
      plans.push_back(ForLargerBudget(plans.back(), budget, stop));
    } else {
      // The time that one search does not use goes to the searches after it.
      solver::SearchLimits remaining_limits = clock.Remaining();
      remaining_limits.time_limit_s /=
          static_cast<double>(budgets.size() - plans.size());
      plans.push_back(plan_within(budget, remaining_limits));
    }
    if (on_plan) on_plan(plans.size());
  }
  return plans;
}

// The budget within which no plan is needed.
int64_t UnplannedBytes(const PlanningProblem& problem) {
  return problem.unplanned_peak_bytes + problem.options.reserve_bytes;
}

}  // namespace

std::vector<Plan> PlanFrontier(const PlanningProblem& problem,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& on_plan,
                               KnownUnits known_units) {
  return PlansWithin(
      std::move(budgets), UnplannedBytes(problem), limits, on_plan,
      [&](int64_t budget, const solver::SearchLimits& remaining_limits) {
        PlanAnswer answer =
            PlanFor(problem, budget, remaining_limits, known_units);
        if (answer.plan.HasPlan()) {
          known_units = std::move(answer.units);
        }
        return std::move(answer.plan);
      });
}

std::vector<Plan> PlanFrontier(const Families& families,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& on_plan,
                               std::vector<LeastAnswer> known_answers) {
  if (families.size() == 1) {
    return PlanFrontier(
        families.front().problem, std::move(budgets), limits, on_plan,
        known_answers.empty() ? KnownUnits()
                              : std::move(known_answers.front().units));
  }
  known_answers.resize(families.size());
  return PlansWithin(
      std::move(budgets), UnplannedBytes(families.front().problem), limits,
      on_plan,
      [&](int64_t budget, const solver::SearchLimits& remaining_limits) {
        Plan plan =
            PlanFor(families, budget, remaining_limits, known_answers).plan;
        for (size_t f = 0; f < families.size(); ++f) {
          KnownUnits units = UnitsIn(families[f], plan);
          if (!units.modules.empty()) known_answers[f].units = std::move(units);
        }
        return plan;
      });
}

}  // namespace acplan::problems
