#pragma once

#include <functional>
#include <vector>

#include "problems/joint_problem.h"
#include "problems/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// An answer to a joint problem is a ModuleSolution: the units with the bytes
// that the policy of each discards, net of held ones.

using SolveJointProblem = std::function<ModuleSolution(
    const JointProblem&, const solver::SearchLimits&)>;

// As SolveWithScaledTimes (module_solution.h).
ModuleSolution SolveJointWithScaledTimes(const JointProblem& problem,
                                         const solver::SearchLimits& limits,
                                         const SolveJointProblem& solve);

// Total of the least ms with which the units can discard their bytes.
double JointCost(const JointProblem& problem,
                 const std::vector<ChosenUnit>& units);

}  // namespace acplan::problems
