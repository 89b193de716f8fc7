#pragma once

#include <vector>

#include "graph/trace/simulation.h"
#include "problems/offload/movables.h"
#include "problems/plan/plan.h"
#include "problems/planner.h"
#include "solver/search.h"

namespace acplan::problems {

// Returns the link of a plan that offloads, before it says what moves.
PlanOffload OffloadOver(const LinkLimits& link);

// Returns the plan with the results and arguments that are best offloaded to the host
// (offload/offload_search.h), or unchanged if the search finds no cheaper one.
// If `plan` is an answer without a plan, returns a plan that fits with offload,
// if the search finds one. The result names the link. `plan` is the answer of
// PlanFor for the problem, which must be on a trace and may skip.
//
// An answer is optimal only if it costs nothing. For others no bound is known,
// and no budget is proven infeasible; an answer without a plan says what fits
// without offload. The search starts from `known_units` as well. Throws OptionError for
// problems that are not on traces or may not skip.
Plan WithOffload(
    const PlanningProblem& problem, Plan plan, const LinkLimits& link,
    const solver::SearchLimits& limits,
    const std::vector<graph::CheckpointedModule>& known_units = {});

// Returns the least answer that a search for plans with offload finds
// (offload/least_offload.h): `least`, the answer without offload, or one that is smaller
// and not proven, whose units offload nothing yet. Its bound is what stays on the device
// under every plan. Throws as WithOffload.
LeastAnswer LeastWithOffload(const PlanningProblem& problem, LeastAnswer least,
                             const LinkLimits& link,
                             const solver::SearchLimits& limits);

}  // namespace acplan::problems
