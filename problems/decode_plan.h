#pragma once

#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/simulation.h"
#include "problems/model/joint_problem.h"
#include "problems/model/module_problem.h"
#include "problems/plan/plan.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// Turns the answers of engines into modules of a plan.

// Returns a unit with a ratio.
PlannedModule DecodeModule(const graph::Profile& profile,
                           const graph::ModuleTree& tree,
                           const BuiltModuleProblem& built_problem,
                           const ChosenUnit& unit);

// Returns a unit with the policy that recomputes least among those that discard
// as much as the unit must, or the engine's policy if the search for that one
// takes too long.
PlannedModule DecodeUnit(const graph::Profile& profile,
                         const graph::ModuleTree& tree,
                         const BuiltJointProblem& built_problem,
                         const ChosenUnit& unit);

// Returns units under the trace memory model, in the order of the module tree.
std::vector<PlannedModule> DecodeUnits(
    const graph::Profile& profile, const graph::ModuleTree& tree,
    const TraceProblem& problem,
    const std::vector<graph::CheckpointedModule>& units);

}  // namespace acplan::problems
