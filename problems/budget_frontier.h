#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "problems/segment_plans.h"
#include "solver/search.h"

namespace acplan::problems {

// The trade-off of a whole model: the recomputation at each budget.

// Returns `points` evenly spaced budgets from `least` to `most`, including
// both, ascending and distinct. Requires 1 <= points and least <= most; with
// one point the result is `least`.
std::vector<int64_t> EvenBudgets(int64_t least, int64_t most, int points);

// Returns a plan for each budget, in ascending order of the budgets, without
// duplicates. Each search starts from the plan of the previous budget, which
// also fits the larger one. So a smaller budget never recomputes less,
// whichever limit stops a search. The time limit is for all searches together
// and is divided evenly among the remaining ones. `on_plan` (may be empty) is
// called after each plan with the number of plans so far. `known_units`: units
// known before, for the budgets that they meet.
std::vector<Plan> PlanFrontier(const PlanningProblem& problem,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& on_plan = {},
                               KnownUnits known_units = {});

// Does the same for problems in which runs of modules may be units.
// `known_answers`: as in PlanFor.
std::vector<Plan> PlanFrontier(const Families& families,
                               std::vector<int64_t> budgets,
                               const solver::SearchLimits& limits,
                               const std::function<void(size_t)>& on_plan = {},
                               std::vector<LeastAnswer> known_answers = {});

}  // namespace acplan::problems
