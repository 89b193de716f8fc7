#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "problems/segment_plans.h"
#include "solver/search.h"

namespace acplan::problems {

// The trade-off of a whole model: what it recomputes at each budget.

// `points` budgets, evenly spaced from `least` to `most`, both among them,
// ascending and distinct. 1 <= points, least <= most; one point is `least`.
std::vector<int64_t> EvenBudgets(int64_t least, int64_t most, int points);

// A plan for each budget, in ascending order of budgets, duplicates once. Each
// search starts from the plan of the budget before, which fits here too: a
// smaller budget never recomputes less, whatever limits strike. The time limit
// is for all searches together, shared out evenly among those to come. `done`
// (may be empty) is called after each plan with their number so far. `known`:
// units known before, for the budgets that they meet.
std::vector<Plan> PlanFrontier(const PlanningProblem& problem,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& done = {},
                               KnownUnits known = {});

// The same, where runs of modules may be units. `known`: as PlanFor.
std::vector<Plan> PlanFrontier(const Families& families,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& done = {},
                               std::vector<LeastAnswer> known = {});

}  // namespace acplan::problems
