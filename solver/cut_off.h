#pragma once

#include <vector>

#include "solver/milp.h"

namespace acplan::solver {

// `milp` with one more row (and columns, where integers are not binary), which
// cuts off x and loses no integer point that keeps row `row`. For points that
// break a row by less than a solver's tolerance.
//
// Where x is below the row, every point that keeps it has a column of positive
// coefficient above x_j, or one of negative coefficient below:
//   sum_j w_j >= 1,  w_j in {0, 1},  w_j = 1 only if x_j is beyond its value in
//   the direction that helps.
// Likewise where x is above. The row's columns must be integers with finite
// bounds, x must be integral in them and have one value a column; x must be
// outside of the row, if only by rounding. The new columns come last. Where no
// column can help, the new row has no terms, and the program no solution.
Milp WithCutOff(Milp milp, int row, const std::vector<double>& x);

}  // namespace acplan::solver
