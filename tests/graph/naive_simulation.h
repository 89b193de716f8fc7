#pragma once

#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Simulates by the rules of graph/trace/simulation.h, stated once more, as
// plainly as possible: the step is played, operator by operator, with a list of
// the holders of each piece. Plays plans that the simulation refuses, too.
Simulation SimulateNaively(const Trace& trace,
                           const std::vector<CheckpointedModule>& modules);

// Returns whether all operators that run again read the values that they read
// in the forward pass, and backward gets the values that the forward pass
// saved: each value is followed from operator to operator. A view of a storage
// that is there counts as there, even if it is skipped. For units that are not
// inside one another.
bool ComputesTheSame(const Trace& trace,
                     const std::vector<CheckpointedModule>& modules);

}  // namespace acplan::graph
