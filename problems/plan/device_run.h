#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/run/training_run.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// The settings of a program for PyTorch's allocator, as a plan names them.
struct DeviceSetting {
  std::string allocator = "native";  // or the text of PYTORCH_ALLOC_CONF
  graph::AllocatorConfig config = {};
  bool makes_state_first = false;  // RunOptions::makes_state_first

  bool IsDefault() const { return allocator == "native" && !makes_state_first; }
};

// Returns the step of a plan as the storages that it uses. Throws InputError
// under the conditions of CheckpointedModules and Simulate.
struct StepOfPlan {
  std::optional<graph::Trace> with_segments;  // of the plan, where it has some
  graph::LivedStep step;
};
StepOfPlan LiveStep(const graph::Trace& trace,
                    const std::vector<PlannedModule>& units);

// Returns what a run of the step asks of any allocator. `trace` is the plan's.
graph::TrainingRun RunOf(const graph::Trace& trace, const StepOfPlan& step,
                         bool makes_state_first);

// Runs on a device of so many bytes, and returns what a plan says about it, or
// nothing if the run ends without memory. The comparison with the defaults
// stays empty. The retries of a run of several shapes are all of them.
std::optional<PlanDevice> FindDeviceUse(const graph::TrainingRun& run,
                                        const DeviceSetting& setting,
                                        int64_t device_bytes);

}  // namespace acplan::problems
