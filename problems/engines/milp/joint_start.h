#pragma once

#include <optional>
#include <vector>

#include "problems/engines/milp/joint_form.h"
#include "solver/lp_solver.h"
#include "solver/milp.h"

namespace acplan::problems {

// Rounds the relaxation of a form to a good solution that keeps every row, as a
// start for CBC. Returns nullopt if it finds none.
std::optional<std::vector<double>> RoundedStart(const JointMilp& form,
                                                const solver::LpSolution& lp);

// Narrows the bounds of columns to those that a solution of at most `ms` can
// have, by the reduced costs of the relaxation.
solver::Milp CoreOf(solver::Milp milp, const solver::LpSolution& lp, double ms);

}  // namespace acplan::problems
