#pragma once

#include "problems/offload/movables.h"
#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "solver/search.h"

namespace acplan::problems {

// The plan with what it had better offload to the host (offload/offload_search.h),
// or as it is where nothing is found that costs less; and where none fits, one
// that does with offload, if one is found. It says over which link. `plan` is the
// answer of PlanFor for the problem, which is on a trace and may skip.
//
// Optimal is an answer that costs nothing. No bound is known of others, nor is a
// budget proven infeasible; where the answer has no plan it says what fits
// without offload. Throws OptionError for problems that are not on traces or may
// not skip.
Plan WithOffload(const PlanningProblem& problem, Plan plan,
                 const LinkLimits& link, const solver::SearchLimits& limits);

}  // namespace acplan::problems
