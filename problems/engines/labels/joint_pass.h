#pragma once

#include <vector>

#include "problems/model/joint_problem.h"
#include "problems/model/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// The knowledge of a joint problem that a search starts from.
struct JointStart {
  std::vector<ChosenUnit> known_units =
      {};  // a plan that keeps every record, if any
  // True if the search is to go straight for the proof, since `known_units` is
  // probably nearly optimal.
  bool known_is_near = false;
  double bound_ms = 0;  // no plan costs less
};

// Solves a joint problem with prefix structure by passes (label_passes.h) over its
// labels.
ModuleSolution SearchJointByPasses(const JointProblem& problem,
                                   const solver::SearchLimits& limits,
                                   const JointStart& start);

}  // namespace acplan::problems
