#pragma once

#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// The units of a plan, and besides more that keep all that they can, so that
// what these keep may be offloaded. Modules of a class that is called often come
// first, of these the class whose calls make the most bytes that autograd saves.
// Only what the simulation takes, no unit inside another one, and no more than
// `max_units`.
std::vector<graph::CheckpointedModule> WithCover(
    const TraceProblem& problem, std::vector<graph::CheckpointedModule> units,
    std::optional<int> max_units);

// As the search of a plan knows a unit: what is offloaded is saved.
std::vector<graph::CheckpointedModule> WithoutOffload(
    std::vector<graph::CheckpointedModule> units);

}  // namespace acplan::problems
