#pragma once

#include <optional>

#include "problems/model/joint_problem.h"

namespace acplan::problems {

// Returns the least milliseconds over every set of units that are not nested
// and every decision for each of their groups; nullopt if none fits. This
// oracle uses the statement of the problem alone (it does not read the curves
// of problem.relaxed).
std::optional<double> LeastJointMs(const JointProblem& problem);

}  // namespace acplan::problems
