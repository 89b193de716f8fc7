#include "solver/lp_solver.h"

#include <ClpSimplex.hpp>
#include <CoinPackedMatrix.hpp>
#include <algorithm>
#include <cmath>

#include "solver/clp_model.h"

namespace acplan::solver {

LpSolution SolveLp(const Milp& milp, double time_limit_s) {
  ValidateMilp(milp);
  const double factor = CostFactor(milp);
  ClpSimplex clp;
  clp.setLogLevel(0);
  const ClpModel model(milp, factor);
  clp.loadProblem(model.Matrix(), model.lower.data(), model.upper.data(),
                  model.cost.data(), model.row_lower.data(),
                  model.row_upper.data());
  clp.setOptimizationDirection(1);
  if (std::isfinite(time_limit_s)) {
    clp.setMaximumSeconds(std::max(time_limit_s, 0.0));
  }
  clp.dual();
  if (IsDoubtful(StatusOf(clp))) {
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
