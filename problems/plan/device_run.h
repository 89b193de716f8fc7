#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/run/training_run.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// PyTorch's allocator with options, as a plan names it.
struct DeviceAllocator {
  std::string text = "native";  // or the text of PYTORCH_ALLOC_CONF
  graph::AllocatorConfig config = {};
};

// Returns what a run of the plan's steps asks of the allocator. Throws
// InputError under the conditions of CheckpointedModules and Simulate.
graph::TrainingRun RunOfPlan(const graph::Trace& trace,
                             const std::vector<PlannedModule>& units);

// Runs on a device of so many bytes, and returns what a plan says about it, or
// nothing if the run ends without memory. PlanDevice's comparisons with the
// defaults stay empty.
std::optional<PlanDevice> FindDeviceUse(const graph::TrainingRun& run,
                                        const DeviceAllocator& allocator,
                                        int64_t device_bytes);

}  // namespace acplan::problems
