#pragma once

#include <functional>
#include <vector>

#include "problems/model/joint_problem.h"
#include "problems/model/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// An answer to a joint problem is a ModuleSolution: each unit with its policy
// and the bytes that it discards, net of held ones.

using SolveJointProblem = std::function<ModuleSolution(
    const JointProblem&, const solver::SearchLimits&)>;

// Does the same as SolveWithScaledTimes (module_solution.h).
ModuleSolution SolveJointWithScaledTimes(const JointProblem& problem,
                                         const solver::SearchLimits& limits,
                                         const SolveJointProblem& solve);

// Returns the total cost of the units' policies.
double JointCost(const JointProblem& problem,
                 const std::vector<ChosenUnit>& units);

// Returns the unit with a policy that discards as much and costs no more: the
// cheapest one, unless the search for it takes long.
ChosenUnit WithCheapPolicy(const JointProblem& problem, ChosenUnit unit);

}  // namespace acplan::problems
