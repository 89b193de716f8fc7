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

std::vector<Plan> PlanFrontier(const PlanningProblem& problem,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& done,
                               KnownUnits known) {
  std::ranges::sort(budgets);
  const auto duplicates = std::ranges::unique(budgets);
  budgets.erase(duplicates.begin(), duplicates.end());
  const solver::Stopwatch stopwatch;
  std::vector<Plan> plans;
  for (const int64_t budget : budgets) {
    // What one search does not use is left to those after it.
    solver::SearchLimits left = solver::LeftOf(limits, stopwatch.Seconds());
    left.time_limit_s /= static_cast<double>(budgets.size() - plans.size());
    PlanAnswer answer = PlanFor(problem, budget, left, known);
    if (answer.plan.HasPlan()) known = std::move(answer.units);
    plans.push_back(std::move(answer.plan));
    if (done) done(plans.size());
  }
  return plans;
}

}  // namespace acplan::problems
