#pragma once

#include <cstdint>

#include "problems/model/module_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// The second problem: the least budget under which a module problem has a plan.
//
//   minimise   max over records k of
//                b_k - sum_{t_j < t_k} D_j y_j + sum_{j contains k} h_j y_j
//   over y as in the module problem (path cliques, max_units), every unit
//   discarding all it can.
//
// With prefix structure, having discarded more is never worse, so one walk that
// keeps the most bytes decides whether a budget is feasible, and bisection over
// whole bytes finds the least one. Otherwise CBC solves it to its tolerance, and
// then looks for a plan a byte below until it proves that there is none.
struct MinimumBudget {
  // Whole bytes. The least budget where proven; else a budget that some plan
  // meets.
  int64_t bytes = 0;
  bool proven = false;
  // No plan meets less: `bytes`, where proven.
  int64_t bound_bytes = 0;
  // The limit that ended the search before the proof.
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
};

// problem.budget_bytes, limits.gap and limits.on_progress are ignored.
MinimumBudget FindMinimumBudget(const ModuleProblem& problem,
                                const solver::SearchLimits& limits = {});

}  // namespace acplan::problems
