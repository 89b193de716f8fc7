#pragma once

#include <optional>
#include <string>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/check/call_index.h"

namespace acplan::problems {

// Returns the first unmet need, from the end of the first call that has one, as
// one line that begins with the module; nullopt if there is none. A need is
// unmet if a unit skips or does not keep something that it needs when it runs
// again. This states the rule once more, from the trace alone. The unit must
// have as many decisions as each of its calls has operators, and no unit inside
// of it.
//
// In addition the simulation (graph/trace/simulation.h) refuses tensors that
// may be read of a view that is skipped while its storage is there.
std::optional<std::string> BrokenSkipRule(
    const graph::Trace& trace, const CallIndex& index,
    const graph::CheckpointedModule& unit);

}  // namespace acplan::problems
