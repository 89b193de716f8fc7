#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// The units that a cover adds.
struct CoverChoice {
  std::optional<int> max_units = {};  // in total
  // They keep all that they can, so that their results may be offloaded. Otherwise they
  // keep nothing, and their arguments may be.
  bool keeps_results = true;
  // How many of the classes that come first are left out. Units of a later class are
  // parts of those.
  size_t skipped_classes = 0;
};

// Returns the units of a plan together with additional units. Modules of a class that is
// called often come first, and among these the class whose calls make the most
// bytes that autograd saves. Adds only units that the simulation accepts and
// that are not inside another one.
std::vector<graph::CheckpointedModule> WithCover(
    const TraceProblem& problem, std::vector<graph::CheckpointedModule> units,
    const CoverChoice& choice);

// Returns the units with the parts of one in its place, which keep nothing: the
// candidates directly inside it.
std::vector<graph::CheckpointedModule> WithPartsOf(
    const TraceProblem& problem, graph::ModuleId module,
    std::vector<graph::CheckpointedModule> units);

// Returns the units in the form that the search for plans knows: offloaded
// operators are saved, and arguments stay on the device.
std::vector<graph::CheckpointedModule> WithoutOffload(
    std::vector<graph::CheckpointedModule> units);

}  // namespace acplan::problems
