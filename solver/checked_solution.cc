#include "solver/checked_solution.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

namespace acplan::solver {

ColumnBounds BoundsOf(const Milp::Column& column) {
  if (!column.is_integer) return {column.lower, column.upper};
  return {std::ceil(column.lower - kIntegerTolerance),
          std::floor(column.upper + kIntegerTolerance)};
}

std::vector<double> Rounded(const Milp& milp, std::span<const double> x) {
  std::vector<double> rounded(x.begin(), x.end());
  for (size_t j = 0; j < rounded.size(); ++j) {
    const ColumnBounds bounds = BoundsOf(milp.columns[j]);
    if (milp.columns[j].is_integer) rounded[j] = std::round(rounded[j]);
    rounded[j] = std::clamp(rounded[j], bounds.lower, bounds.upper);
    if (rounded[j] == 0) rounded[j] = 0;  // 0 in place of -0
  }
  return rounded;
}

std::optional<CheckedSolution> Checked(const Milp& milp,
                                       std::vector<double> x) {
  if (!IsFeasible(milp, x)) return std::nullopt;
  const double objective = ObjectiveValue(milp, x);
  return CheckedSolution{.x = std::move(x), .objective = objective};
}

std::optional<CheckedSolution> Better(std::optional<CheckedSolution> first,
                                      std::optional<CheckedSolution> second) {
  const bool is_second =
      second && (!first || second->objective < first->objective);
  return is_second ? std::move(second) : std::move(first);
}

}  // namespace acplan::solver
