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

// The bounds of a column, of an integer one as integers.
ColumnBounds BoundsOf(const Milp::Column& column);

// Returns x with integers made exact and every value within its bounds.
std::vector<double> Rounded(const Milp& milp, std::span<const double> x);

// Returns x where it is feasible.
std::optional<CheckedSolution> Checked(const Milp& milp, std::vector<double> x);

// Returns the better one of two, the first where they are equally good.
std::optional<CheckedSolution> Better(std::optional<CheckedSolution> first,
                                      std::optional<CheckedSolution> second);

}  // namespace acplan::solver
