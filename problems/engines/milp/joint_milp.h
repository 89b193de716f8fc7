#pragma once

#include "problems/model/joint_problem.h"
#include "problems/model/module_solution.h"
#include "solver/search.h"

namespace acplan::problems {

// Solves any joint problem with CBC. First the relaxation, whose duals fix what
// no solution better than a rounded one can have, then the rest. Net bytes and
// milliseconds are those of the groups chosen, added up anew. Whether the
// records are kept is checked apart from CBC's tolerances, and what breaks one
// by less is cut off.
ModuleSolution SolveJointByCbc(const JointProblem& problem,
                               const solver::SearchLimits& limits = {});

}  // namespace acplan::problems
