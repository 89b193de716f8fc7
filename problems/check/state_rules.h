#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/check/call_index.h"

namespace acplan::problems {

// Returns whether a storage is a counter for the call: every operator of the
// call that reads the storage writes to it, or is a view of it, and returns
// nothing else.
bool IsCounter(const graph::Trace& trace, const graph::TraceCall& call,
               graph::StorageId storage);

// Returns the last operator of the units that would read something else when its
// unit runs again, as one line that begins with the module. Such an operator
// reads a storage that was there before the call and that is written to in
// place after the operator and before the call runs again. Returns nullopt if
// there is none. This states the rule of the simulation once more, from the
// trace alone. A unit must have as many decisions as each of its calls has
// operators, or none if all operators run again, and no unit inside of it.
std::optional<std::string> BrokenStateRule(
    const graph::Trace& trace, const CallIndex& index,
    const std::vector<graph::CheckpointedModule>& units);

}  // namespace acplan::problems
