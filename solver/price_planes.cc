#include "solver/price_planes.h"

#include <algorithm>

#include "solver/lp_solver.h"
#include "solver/milp.h"

namespace acplan::solver {

// Solves the dual: each plane is a column, and the duals of the rows are the prices.
std::optional<HighestPoint> FindHighestPoint(
    const std::vector<PricePlane>& planes, size_t rows,
    std::optional<double> price_of_missing) {
  Milp program;
  for (size_t row = 0; row < rows; ++row) program.AddRow({.upper = 0});
  program.AddRow({.lower = 1, .upper = 1});
  for (const PricePlane& plane : planes) {
    const int column = program.AddColumn({.cost = plane.cost});
    for (size_t row = 0; row < rows; ++row) {
      program.rows[row].terms.push_back({column, plane.excess[row]});
    }
    program.rows[rows].terms.push_back({column, 1});
  }
  if (price_of_missing) {
    const int missing = program.AddColumn({.cost = *price_of_missing});
    for (size_t row = 0; row < rows; ++row) {
      program.rows[row].terms.push_back({missing, -1});
    }
  }
  const LpSolution solution = SolveLp(program);
  if (solution.status != LpStatus::kOptimal) return std::nullopt;
  HighestPoint highest{.height = solution.objective};
  for (size_t row = 0; row < rows; ++row) {
    highest.prices.push_back(std::max(0.0, -solution.row_duals[row]));
  }
  highest.shares.assign(
      solution.x.begin(),
      solution.x.begin() + static_cast<std::ptrdiff_t>(planes.size()));
  if (price_of_missing) highest.missing = solution.x.back();
  return highest;
}

}  // namespace acplan::solver
