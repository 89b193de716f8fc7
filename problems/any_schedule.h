#pragma once

#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "solver/search.h"

namespace acplan::problems {

// A plan on a trace that may skip, with what any schedule of its step recomputes at least within
// the budget (trace/rerun_bound/rerun_bound.h), and how far it is from that. Where that is more
// than the plan's own bound, it takes its place. Any other answer is returned as it is.
// The limits are those of this bound. Throws std::logic_error where the plan recomputes
// less than the bound: a defect of acplan.
Plan WithAnySchedule(const PlanningProblem& problem, Plan plan,
                     const solver::SearchLimits& limits = {.time_limit_s = 1});

}  // namespace acplan::problems
