#pragma once

#include <vector>

#include "solver/milp.h"

namespace acplan::solver {

// Returns `milp` with one more row (and more columns, if integers are not binary) that cuts
// off x and loses no integer point that keeps row `row`. Use it for points that break a row
// by less than a solver's tolerance.
//
// If x is below the row, every point that keeps the row has a column with a positive
// coefficient above x_j, or one with a negative coefficient below x_j:
//   sum_j w_j >= 1,  w_j in {0, 1},  w_j = 1 only if x_j is beyond its value in
//   the direction that helps.
// The case of x above the row is alike. The row's columns must be integers with finite
// bounds, x must be integral in them and have one value for each column, and x must be
// outside of the row, if only by rounding. The new columns come last. If no column can
// help, the new row has no terms, and the program has no solution.
Milp WithCutOff(Milp milp, int row, const std::vector<double>& x);

}  // namespace acplan::solver
