#pragma once

#include <optional>
#include <string>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::problems {

// Whether what a unit skips or does not keep is needed when it runs again:
// stated once more, from the trace alone. The unit's decisions are as many as
// the operators of each of its calls. No unit is inside of it.
//
// Returns the first need that is not met, from the end of the first call with
// one, as one line that begins with the module; nullopt where there is none.
// What the simulation (graph/trace/simulation.h) refuses beyond that are tensors
// that may be read of a view that is skipped while its storage is there.
std::optional<std::string> BrokenSkipRule(
    const graph::Trace& trace, const graph::CheckpointedModule& unit);

}  // namespace acplan::problems
