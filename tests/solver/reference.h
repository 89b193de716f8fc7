#pragma once

#include <optional>
#include <random>

#include "solver/milp.h"

namespace acplan::solver {

struct RandomMilpOptions {
  int integers = 4;
  int continuous = 0;
  int rows = 4;
  bool equalities = false;
  bool fractional = false;  // coefficients and costs that are no integers
};

// Returns a small program whose columns are all bounded; some have no solution.
Milp RandomMilp(std::mt19937& random, const RandomMilpOptions& options);

// Returns the optimal objective by trying all integers and all vertices of the
// remaining program (at most three continuous columns); nothing if there is no
// solution.
std::optional<double> BruteForce(const Milp& milp);

// Returns a multi-dimensional knapsack that takes CBC much longer than a few
// seconds.
Milp HardKnapsack(int items, int dimensions, int seed);

}  // namespace acplan::solver
