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

// Turns what engines answer into modules of a plan.

// A unit with a ratio.
PlannedModule DecodeModule(const graph::Profile& profile,
                           const graph::ModuleTree& tree,
                           const BuiltModuleProblem& built,
                           const ChosenUnit& unit);

// A unit with the policy that recomputes least of those that discard what the unit
// must, or the engine's where that would take long to find.
PlannedModule DecodeUnit(const graph::Profile& profile,
                         const graph::ModuleTree& tree,
                         const BuiltJointProblem& built,
                         const ChosenUnit& unit);

// Units under the trace memory model, in the order of the module tree.
std::vector<PlannedModule> DecodeUnits(
    const graph::Profile& profile, const graph::ModuleTree& tree,
    const TraceProblem& built,
    const std::vector<graph::CheckpointedModule>& units);

}  // namespace acplan::problems
