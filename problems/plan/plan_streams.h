#pragma once

#include <optional>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Returns the times of a plan's step on the device's streams, without a bound for other plans;
// nothing if the trace has one stream only. `simulator` simulates the trace.
std::optional<PlanStreams> StreamsOf(const graph::Trace& trace,
                                     const graph::Simulator& simulator,
                                     const Plan& plan);

// Returns the share of the step by which a plan makes it longer: of what the plan costs or,
// with streams, of what other streams do not hide. 0 if the step takes no time.
double OverheadOf(const Plan& plan);

// Returns whether it is proven that no plan's step is shorter than this one's, which runs on
// streams.
bool IsProvenStep(const Plan& plan);

// Returns a plan that, with streams and without offload, is called optimal if and only if no plan's step is
// shorter.
Plan WithProvenStep(Plan plan);

}  // namespace acplan::problems
