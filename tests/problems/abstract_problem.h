#pragma once

#include <random>

#include "problems/model/joint_problem.h"
#include "problems/model/module_problem.h"

namespace acplan::problems {

struct AbstractProblemOptions {
  int most_nodes = 12;
  bool prefix_structure = true;
  double held_bytes = 0.4;  // probabilities
  double limited_units = 0.4;
};

// Returns a module problem without a profile: a random forest with random
// records and curves, of which a few kinds repeat, and a budget that requires
// some units.
ModuleProblem RandomModuleProblem(std::mt19937& random,
                                  const AbstractProblemOptions& options = {});

struct AbstractJointOptions {
  AbstractProblemOptions forest = {.most_nodes = 7};
  int most_kinds = 3;         // of equal groups in a unit
  int most_equal = 2;         // groups of a kind
  double equal_blocks = 0.3;  // probability
  int64_t bytes_scale = 1;    // everything in bytes is a multiple of it
};

// Returns a joint problem without a profile: the forest, records and budget of
// a random module problem, or of several equal blocks that no record tells
// apart; random policies, some of which make more than autograd keeps; some
// groups and units cost nothing.
JointProblem RandomJointProblem(std::mt19937& random,
                                const AbstractJointOptions& options = {});

}  // namespace acplan::problems
