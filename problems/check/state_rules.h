#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::problems {

// Returns whether a storage is a counter for the call: every operator of the call
// that reads it writes to it, or shows it, and returns nothing else.
bool IsCounter(const graph::Trace& trace, const graph::TraceCall& call,
               graph::StorageId storage);

// Returns the first operator of a unit that would read something else when the
// unit runs again, as one line that begins with the module: it reads what was
// there before the call, and what is written to in place after it and before
// the call runs again. Returns nullopt if there is none. This states the rule of
// the simulation once more, from the trace alone. The unit's decisions are as
// many as the operators of each of its calls, or none if all run again.
std::optional<std::string> BrokenStateRule(
    const graph::Trace& trace, const graph::CheckpointedModule& unit);

}  // namespace acplan::problems
