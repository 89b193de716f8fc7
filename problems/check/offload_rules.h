#pragma once

#include <optional>
#include <string>

#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Computes what a plan on a trace moves to the host and how long its step waits
// for that, from the trace and the plan alone. Returns nothing if the plan
// names no link. Throws InputError under the conditions of CheckpointedModules
// and Simulate.
std::optional<PlanOffload> OffloadEffect(const graph::Trace& trace,
                                         const Plan& plan);

// Returns the first statement of the plan about offloading that is false, or a
// complaint if the host holds more than its limit; nothing if neither applies.
std::optional<std::string> BrokenOffloadRule(const PlanOffload& stated,
                                             const PlanOffload& actual);

}  // namespace acplan::problems
