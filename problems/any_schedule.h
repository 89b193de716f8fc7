#pragma once

#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "solver/search.h"

namespace acplan::problems {

// Returns a plan on a trace that may skip, together with a lower bound on what
// any schedule of its step recomputes within the budget
// (trace/rerun_bound/rerun_bound.h), and the distance of the plan from that
// bound. If this bound is higher than the plan's own bound, it replaces it.
// Returns any other answer unchanged. `limits` hold for the computation of this
// bound. Throws std::logic_error if the plan recomputes less than the bound,
// which is a defect of acplan.
Plan WithAnySchedule(const PlanningProblem& problem, Plan plan,
                     const solver::SearchLimits& limits = {.time_limit_s = 1});

}  // namespace acplan::problems
