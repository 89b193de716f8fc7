#pragma once

#include <optional>
#include <string>

#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Adds up the host's time for the step, from the trace and the plan alone, which costs the
// device `cost_ms`. Returns the first statement of the plan about it that is false; nothing
// if there is none.
//
// Throws InputError under the conditions of CheckpointedModules and Simulate.
std::optional<std::string> FalseHostTime(const graph::Trace& trace,
                                         const Plan& plan, double cost_ms);

}  // namespace acplan::problems
