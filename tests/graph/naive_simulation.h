#pragma once

#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The rules of graph/trace/simulation.h once more, as plainly as they can be
// put: the step is played, operator by operator, and who holds what is listed.
// Whatever is refused is played nevertheless.
Simulation SimulateNaively(const Trace& trace,
                           const std::vector<CheckpointedModule>& modules);

// Whether all that runs again reads what it read in the forward pass, and
// backward finds what the forward pass saved: each value is followed from
// operator to operator. A view of what is there counts as there, even if it is
// skipped. For units that are not inside one another.
bool ComputesTheSame(const Trace& trace,
                     const std::vector<CheckpointedModule>& modules);

}  // namespace acplan::graph
