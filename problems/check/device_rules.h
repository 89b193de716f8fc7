#pragma once

#include <optional>
#include <string>

#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Runs the plan's steps on the device that it names, by PyTorch's allocator,
// from the trace and the plan alone. Returns the first statement of
// the plan about the device that is false, or a complaint if the run ends without
// memory; nothing if neither applies, or if the plan names no device.
//
// Throws InputError ("plan: device: ...") for an allocator or a version that is
// none, and under the conditions of CheckpointedModules and Simulate.
std::optional<std::string> BrokenDeviceRule(const graph::Trace& trace,
                                            const Plan& plan);

}  // namespace acplan::problems
