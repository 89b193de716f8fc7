#include "solver/lp_solver.h"

#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <algorithm>
#include <cmath>

namespace acplan::solver {
namespace {

double ToCoin(double bound) {
  return std::isinf(bound) ? std::copysign(COIN_DBL_MAX, bound) : bound;
}

// Brings the dearest column near 2^15: Clp's tolerances are absolute.
double CostFactor(const Milp& milp) {
  double largest = 0;
  for (const Milp::Column& column : milp.columns) {
    largest = std::max(largest, std::abs(column.cost));
  }
  return largest > 0 ? std::exp2(15 - std::ilogb(largest)) : 1;
}

void Load(const Milp& milp, double factor, ClpSimplex& clp) {
  std::vector<int> rows, columns;
  std::vector<double> coefficients, row_lower, row_upper, lower, upper, cost;
  for (const Milp::Row& row : milp.rows) {
    for (const Milp::Term& term : row.terms) {
      rows.push_back(static_cast<int>(row_lower.size()));
      columns.push_back(term.column);
      coefficients.push_back(term.coefficient);
    }
    row_lower.push_back(ToCoin(row.lower));
    row_upper.push_back(ToCoin(row.upper));
  }
  for (const Milp::Column& column : milp.columns) {
    lower.push_back(ToCoin(column.lower));
    upper.push_back(ToCoin(column.upper));
    cost.push_back(column.cost * factor);
  }
  CoinPackedMatrix matrix(/*colordered=*/true, rows.data(), columns.data(),
                          coefficients.data(),
                          static_cast<CoinBigIndex>(coefficients.size()));
  matrix.setDimensions(static_cast<int>(milp.rows.size()),
                       static_cast<int>(milp.columns.size()));
  clp.loadProblem(matrix, lower.data(), upper.data(), cost.data(),
                  row_lower.data(), row_upper.data());
  clp.setOptimizationDirection(1);
}

LpStatus StatusOf(const ClpSimplex& clp) {
  switch (clp.status()) {
    case 0:
      return LpStatus::kOptimal;
    case 1:
      return LpStatus::kInfeasible;
    case 2:
      return LpStatus::kUnbounded;
    default:
      return LpStatus::kNoSolution;
  }
}

}  // namespace

LpSolution SolveLp(const Milp& milp, double time_limit_s) {
  ValidateMilp(milp);
  const double factor = CostFactor(milp);
  ClpSimplex clp;
  clp.setLogLevel(0);
  Load(milp, factor, clp);
  if (std::isfinite(time_limit_s)) {
    clp.setMaximumSeconds(std::max(time_limit_s, 0.0));
  }
  clp.dual();
  if (clp.status() == 1 || clp.status() == 2 || clp.status() == 4) {
    clp.allSlackBasis(true);
    clp.primal();
  }
  LpSolution solution;
  solution.status = StatusOf(clp);
  if (solution.status != LpStatus::kOptimal) return solution;
  const auto columns = static_cast<std::ptrdiff_t>(milp.columns.size());
  const auto rows = static_cast<std::ptrdiff_t>(milp.rows.size());
  solution.x.assign(clp.primalColumnSolution(),
                    clp.primalColumnSolution() + columns);
  solution.reduced_costs.assign(clp.dualColumnSolution(),
                                clp.dualColumnSolution() + columns);
  solution.row_duals.assign(clp.dualRowSolution(),
                            clp.dualRowSolution() + rows);
  for (double& d : solution.reduced_costs) d /= factor;
  for (double& y : solution.row_duals) y /= factor;
  solution.objective = ObjectiveValue(milp, solution.x);
  return solution;
}

}  // namespace acplan::solver
