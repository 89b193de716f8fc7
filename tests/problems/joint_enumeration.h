#pragma once

#include <optional>

#include "problems/model/joint_problem.h"

namespace acplan::problems {

// An oracle: the least milliseconds over every set of units that are not nested
// and every decision for each of their groups; nullopt where none fits. From
// the statement of the problem alone (the curves of problem.relaxed are not
// read).
std::optional<double> LeastJointMs(const JointProblem& problem);

}  // namespace acplan::problems
