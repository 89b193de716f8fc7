#pragma once

#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// Returns the units of a plan together with additional units that keep all that
// they can, so that their results may be offloaded. Modules of a class that is
// called often come first, and among these the class whose calls make the most
// bytes that autograd saves. Adds only units that the simulation accepts and
// that are not inside another one, up to `max_units` in total.
std::vector<graph::CheckpointedModule> WithCover(
    const TraceProblem& problem, std::vector<graph::CheckpointedModule> units,
    std::optional<int> max_units);

// Returns the units in the form that the search for plans knows: offloaded
// operators are saved.
std::vector<graph::CheckpointedModule> WithoutOffload(
    std::vector<graph::CheckpointedModule> units);

}  // namespace acplan::problems
