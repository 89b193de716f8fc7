#pragma once

#include <optional>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Returns the times of a plan's step on the host and on the device, without a bound for other
// plans; nothing if the trace does not have the host's times. `simulator` simulates the trace.
std::optional<PlanHost> HostOf(const graph::Trace& trace,
                               const graph::Simulator& simulator,
                               const Plan& plan);

}  // namespace acplan::problems
