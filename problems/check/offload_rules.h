#pragma once

#include <optional>
#include <string>

#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// What a plan on a trace moves to the host and how long its step waits for it,
// computed from the trace and the plan alone. Nothing where the plan does not say
// over which link. Throws InputError as CheckpointedModules and Simulate do.
std::optional<PlanOffload> OffloadEffect(const graph::Trace& trace,
                                         const Plan& plan);

// The first thing that the plan says of this and that is not so, or that the host
// has more than it may; nothing where there is none.
std::optional<std::string> BrokenOffloadRule(const PlanOffload& stated,
                                             const PlanOffload& actual);

}  // namespace acplan::problems
