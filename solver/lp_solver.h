#pragma once

#include <limits>
#include <vector>

#include "solver/milp.h"

namespace acplan::solver {

enum class LpStatus {
  kOptimal,
  kInfeasible,
  kUnbounded,
  kStopped,  // a limit was hit
  kFailed,   // Clp failed
};

struct LpSolution {
  LpStatus status = LpStatus::kFailed;
  // Empty unless the status is kOptimal.
  std::vector<double> x = {};              // indexed by column
  std::vector<double> reduced_costs = {};  // indexed by column
  std::vector<double> row_duals = {};      // indexed by row
  double objective = kInfinity;            // offset included
};

// Solves the linear relaxation of `milp` (integer columns may take any value
// within their bounds) with COIN-OR Clp. With duals y and reduced costs d,
// d_j = cost_j - sum_i y_i a_ij, and the objective of any x within the rows is
// at least objective + sum_j d_j (x_j - x*_j), each d_j (x_j - x*_j) being at
// least 0. Throws std::invalid_argument for an invalid program. Calls may be
// concurrent.
LpSolution SolveLp(
    const Milp& milp,
    double time_limit_s = std::numeric_limits<double>::infinity());

}  // namespace acplan::solver
