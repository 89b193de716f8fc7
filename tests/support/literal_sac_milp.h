#pragma once

#include <string>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "solver/milp.h"

namespace acplan::test_support {

// The mixed-integer program of PyTorch's sac_milp
// (torch.distributed._tools.sac_ilp), variable for variable and row for row:
// GiB, nested pairs, records chained through a, m and max_m, and rct = ACT rcp
// y by a big-M of 100 ms. It is here for comparison: its relaxation bounds
// nothing, and it excludes a module that recomputes for more than 100 ms, and
// any plan if ACT times an intercept exceeds 100 ms.
//
// Modules on which sac_milp crashes (no SAC memory, a fit that is not finite)
// count as leaves here. Modules that are never called, which it does not know,
// are no units and have no record. With several roots it counts the parameters
// of the first only.
//
// Variable v of tree node i is column v * tree.size() + i; max_m is the last
// column.
enum LiteralVariable { kY, kR, kD, kA, kM, kRcp, kRct, kLiteralVariables };

solver::Milp BuildLiteralSacMilp(
    const graph::Profile& profile, const graph::ModuleTree& tree,
    double budget_bytes, int world_size = 1,
    const std::vector<std::string>& ac_units = {},
    const std::vector<std::string>& fsdp_units = {});

}  // namespace acplan::test_support
