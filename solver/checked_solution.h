#pragma once

#include <optional>
#include <span>
#include <vector>

#include "solver/milp.h"

namespace acplan::solver {

// Integers in a program's bounds may be off by this much.
inline constexpr double kIntegerTolerance = 1e-6;

// A solution that was checked against the program.
struct CheckedSolution {
  std::vector<double> x;
  double objective = kInfinity;
};

struct ColumnBounds {
  double lower;
  double upper;
};

// Returns the bounds of a column, as integers if the column is an integer one.
ColumnBounds BoundsOf(const Milp::Column& column);

// Returns x with the values of integer columns rounded and every value within its bounds.
std::vector<double> Rounded(const Milp& milp, std::span<const double> x);

// Returns x with its objective if it is feasible, otherwise nothing.
std::optional<CheckedSolution> Checked(const Milp& milp, std::vector<double> x);

// Returns the better one of two solutions, the first one if both are equally good.
std::optional<CheckedSolution> Better(std::optional<CheckedSolution> first,
                                      std::optional<CheckedSolution> second);

}  // namespace acplan::solver
