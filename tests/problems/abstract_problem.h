#pragma once

#include <random>

#include "problems/module_problem.h"

namespace acplan::problems {

struct AbstractProblemOptions {
  int most_nodes = 12;
  bool prefix_structure = true;
  double held_bytes = 0.4;  // probabilities
  double limited_units = 0.4;
};

// A module problem without a profile: a random forest with random records and
// curves, a few kinds of which repeat, and a budget that asks for something.
ModuleProblem RandomModuleProblem(std::mt19937& random,
                                  const AbstractProblemOptions& options = {});

}  // namespace acplan::problems
