#pragma once

#include <optional>
#include <string>

#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Measures the step on the device's streams by its longest path, from the trace and the plan
// alone. Returns the first statement of the plan about it that is false; nothing if there is
// none.
//
// Throws InputError under the conditions of CheckpointedModules and Simulate.
std::optional<std::string> FalseStreamTime(const graph::Trace& trace,
                                           const Plan& plan);

// Returns the milliseconds of the longest path through the steps of a simulation, in which a
// step follows the one before it on its stream and the latest run of each operator that it
// waits for.
double LongestPathMs(const graph::Trace& trace,
                     const graph::Simulation& simulation);

}  // namespace acplan::problems
