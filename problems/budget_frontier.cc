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

// `plan_within(budget, limits)` plans, from what it knows of the budgets before.
std::vector<Plan> PlansWithin(
    std::vector<int64_t> budgets, const solver::SearchLimits& limits,
    const std::function<void(size_t)>& done,
    const std::function<Plan(int64_t, const solver::SearchLimits&)>&
        plan_within) {
  std::ranges::sort(budgets);
  const auto duplicates = std::ranges::unique(budgets);
  budgets.erase(duplicates.begin(), duplicates.end());
  const solver::Stopwatch stopwatch;
  std::vector<Plan> plans;
  for (const int64_t budget : budgets) {
    // What one search does not use is left to those after it.
    solver::SearchLimits left = solver::LeftOf(limits, stopwatch.Seconds());
    left.time_limit_s /= static_cast<double>(budgets.size() - plans.size());
    plans.push_back(plan_within(budget, left));
    if (done) done(plans.size());
  }
  return plans;
}

}  // namespace

std::vector<Plan> PlanFrontier(const PlanningProblem& problem,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& done,
                               KnownUnits known) {
  return PlansWithin(std::move(budgets), limits, done,
                     [&](int64_t budget, const solver::SearchLimits& left) {
                       PlanAnswer answer =
                           PlanFor(problem, budget, left, known);
                       if (answer.plan.HasPlan()) {
                         known = std::move(answer.units);
                       }
                       return std::move(answer.plan);
                     });
}

std::vector<Plan> PlanFrontier(const Families& families,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& done,
                               std::vector<LeastAnswer> known) {
  if (families.size() == 1) {
    return PlanFrontier(
        families.front().problem, std::move(budgets), limits, done,
        known.empty() ? KnownUnits() : std::move(known.front().units));
  }
  known.resize(families.size());
  return PlansWithin(std::move(budgets), limits, done,
                     [&](int64_t budget, const solver::SearchLimits& left) {
                       Plan plan = PlanFor(families, budget, left, known).plan;
                       for (size_t f = 0; f < families.size(); ++f) {
                         KnownUnits units = UnitsIn(families[f], plan);
                         if (!units.modules.empty())
                           known[f].units = std::move(units);
                       }
                       return plan;
                     });
}

}  // namespace acplan::problems
