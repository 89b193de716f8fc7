#pragma once

#include <cstdint>
#include <vector>

#include "graph/base/flag.h"
#include "graph/trace/simulation.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// Units of a trace problem as the simulation takes them, by the groups that their
// policies save.

// Returns the unit that is a node of the module tree and saves some groups. All else
// runs again or, where operators may be skipped, what of it is needed. A module without
// groups runs again as a whole.
graph::CheckpointedModule UnitThatSaves(const TraceProblem& problem,
                                        TreeNodeId module_node,
                                        const GroupFlags& is_saved);

// Returns what a unit does with each group. Without a policy there are no groups.
GroupUses UsesOfGroups(const TraceProblem& problem, TreeNodeId module_node,
                       const graph::CheckpointedModule& unit);

// Returns whether a unit, of which a candidate is a call, keeps a storage that an
// operator of the call makes.
bool KeepsResult(const TraceProblem& problem, CandidateId candidate,
                 const graph::CheckpointedModule& unit,
                 graph::StorageId storage);

}  // namespace acplan::problems
