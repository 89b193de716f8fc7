#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>

#include "solver/cbc_solver.h"
#include "solver/search.h"

namespace acplan::problems {

// The parts that all searches with CBC share. A Solution has the members
// status, stopped_by and bound_ms.

// Proofs by CBC hold to this share of the objective.
inline constexpr double kProofTolerance = 1e-6;

// Returns the answer for a problem that has none.
template <typename Solution>
Solution Infeasible(Solution solution) {
  solution.status = solver::SearchStatus::kInfeasible;
  solution.stopped_by = solver::StoppedBy::kNothing;
  solution.bound_ms = std::numeric_limits<double>::infinity();
  return solution;
}

// Returns the answer for a solution that costs `ms`, added up anew: optimal if
// CBC says so and its bound, within `tolerance` ms, agrees.
template <typename Solution>
Solution Concluded(Solution solution, double ms, solver::MilpStatus status,
                   double tolerance) {
  const bool is_proven = ms - solution.bound_ms <= tolerance;
  if (status == solver::MilpStatus::kOptimal && is_proven) {
    solution.status = solver::SearchStatus::kOptimal;
    solution.stopped_by = solver::StoppedBy::kNothing;
    solution.bound_ms = ms;
  } else {
    solution.status = solver::SearchStatus::kFeasible;
    solution.bound_ms = std::min(solution.bound_ms, ms);
  }
  return solution;
}

}  // namespace acplan::problems
