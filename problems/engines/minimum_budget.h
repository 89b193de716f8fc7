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
// With prefix structure it is never worse to have discarded more. So one walk
// that keeps the most bytes decides whether a budget is feasible, and bisection
// over whole bytes finds the least one. Otherwise CBC solves the problem to its
// tolerance, and then looks for a plan a byte below until it proves that there
// is none.
struct MinimumBudget {
  // Whole bytes. The least budget if `proven`; else a budget that some plan
  // meets.
  int64_t bytes = 0;
  bool proven = false;
  // No plan meets a smaller budget. Equal to `bytes` if `proven`.
  int64_t bound_bytes = 0;
  // The limit that ended the search before the proof.
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
};

// Finds the least budget. Ignores problem.budget_bytes, limits.gap and
// limits.on_progress.
MinimumBudget FindMinimumBudget(const ModuleProblem& problem,
                                const solver::SearchLimits& limits = {});

}  // namespace acplan::problems
