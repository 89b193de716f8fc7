#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "problems/engines/minimum_budget.h"
#include "problems/trace/problem/trace_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// The least budget that a plan of a trace problem meets, and such a plan.
//
// Idea. One walk tells whether a relaxation (relaxation.h) has a plan within a budget,
// so the least budget of a relaxation is found in a moment (minimum_budget.h). It is a
// lower bound, for each part of the plans (branching.h) one of its own. The cheapest
// plan of the relaxation at that budget is simulated: its peak is an upper bound,
// whatever it is.
//
// Invariant. Every plan is in an open part, or in one whose bound was no less
// than the best peak when it was closed, or was simulated. An open part's bound
// is no more than the peak of any of its plans.
//
// Proof. The first part holds all plans. A part is closed where its bound
// reaches the best peak: nothing in it is better. Else it is split in two on a
// decision; the halves lose no plan and inherit the bound. SplitOn finds a decision
// as long as the part has more than one plan; the plan of a part with one plan
// is that of its relaxation, which was simulated. So the best peak and the least
// bound of open parts enclose the least budget at any time, and meet in the end.
struct TraceMinimum {
  MinimumBudget budget;
  std::vector<graph::CheckpointedModule> modules =
      {};  // of a plan that meets it
};

// Searches for the least budget. Ends, too, where a plan meets `enough_bytes` or none
// can. `known_modules`: a plan, the answer is no worse. The cut-off is in bytes: the
// search ends where no plan needs less, and the cut-off is the bound then.
TraceMinimum FindLeastPlan(
    const TraceProblem& problem, const solver::SearchLimits& limits = {},
    int64_t enough_bytes = 0,
    const std::vector<graph::CheckpointedModule>& known_modules = {});

// Returns the lesser of both, in bytes.
inline int64_t LesserBytes(int64_t bytes, double cut_off_bytes) {
  return static_cast<int64_t>(
      std::min(static_cast<double>(bytes), cut_off_bytes));
}

}  // namespace acplan::problems
