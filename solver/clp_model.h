#pragma once

#include <vector>

#include "solver/lp_solver.h"
#include "solver/milp.h"

class ClpSimplex;
class CoinPackedMatrix;

namespace acplan::solver {

// Returns the factor for costs that brings the dearest column near 2^15, since COIN-OR's
// tolerances are absolute. Returns 1 if nothing costs anything.
double CostFactor(const Milp& milp);

// A program in the form that the loadProblem of COIN-OR's solvers takes: all rows and
// columns in their order, infinities as COIN-OR writes them, costs multiplied by a factor.
struct ClpModel {
  ClpModel(const Milp& milp, double cost_factor);

  CoinPackedMatrix Matrix() const;

  // Indexed by coefficient.
  std::vector<int> rows, columns;
  std::vector<double> coefficients;
  // Indexed by row, and by column.
  std::vector<double> row_lower, row_upper;
  std::vector<double> lower, upper, cost;
};

LpStatus StatusOf(const ClpSimplex& clp);

// Returns whether a result with this status is to be believed only after a second solution
// in another way.
bool IsDoubtful(LpStatus status);

}  // namespace acplan::solver
