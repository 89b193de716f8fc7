#pragma once

#include "problems/model/joint_problem.h"
#include "problems/model/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// Solves any joint problem with CBC: first the relaxation, whose duals fix the
// columns that every solution better than a rounded one shares, then the rest.
// Net bytes and milliseconds are those of the chosen groups, added up anew. The
// records are checked apart from CBC's tolerances, and a solution that breaks
// one within these tolerances is cut off.
ModuleSolution SolveJointByCbc(const JointProblem& problem,
                               const solver::SearchLimits& limits = {});

}  // namespace acplan::problems
