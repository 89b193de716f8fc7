#pragma once

#include <vector>

#include "solver/lp_solver.h"
#include "solver/milp.h"

class ClpSimplex;
class CoinPackedMatrix;

namespace acplan::solver {

// COIN-OR's tolerances are absolute: this factor brings the dearest column near
// 2^15. 1 where nothing costs anything.
double CostFactor(const Milp& milp);

// A program as the loadProblem of COIN-OR's solvers takes it: all rows and
// columns in their order, infinities as COIN-OR writes them, costs times a
// factor.
struct ClpModel {
  ClpModel(const Milp& milp, double cost_factor);

  CoinPackedMatrix Matrix() const;

  // By coefficient.
  std::vector<int> rows, columns;
  std::vector<double> coefficients;
  // By row, and by column.
  std::vector<double> row_lower, row_upper;
  std::vector<double> lower, upper, cost;
};

LpStatus StatusOf(const ClpSimplex& clp);

// Says whether to solve once more in another way before this status is
// believed.
bool IsDoubtful(LpStatus status);

}  // namespace acplan::solver
