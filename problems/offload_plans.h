#pragma once

#include "problems/offload/movables.h"
#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "solver/search.h"

namespace acplan::problems {

// Returns the plan with the results that are best offloaded to the host
// (offload/offload_search.h), or unchanged if the search finds no cheaper one.
// If `plan` is an answer without a plan, returns a plan that fits with offload,
// if the search finds one. The result names the link. `plan` is the answer of
// PlanFor for the problem, which must be on a trace and may skip.
//
// An answer is optimal only if it costs nothing. For others no bound is known,
// and no budget is proven infeasible; an answer without a plan says what fits
// without offload. Throws OptionError for problems that are not on traces or
// may not skip.
Plan WithOffload(const PlanningProblem& problem, Plan plan,
                 const LinkLimits& link, const solver::SearchLimits& limits);

}  // namespace acplan::problems
