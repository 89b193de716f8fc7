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
  std::string ddp = {};            // the text of RunOptions::ddp; "": without

  // Returns whether the choices of a program are the defaults. It has none on `ddp`.
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

// Returns the options of a run with the setting. Throws InputError for a `ddp` that is
// none.
graph::RunOptions RunOptionsOf(const DeviceSetting& setting);

// Returns what a run of the step asks of any allocator. `trace` is the plan's. Throws
// InputError for a `ddp` that is none, or under the conditions of RequireDataParallel.
graph::TrainingRun RunOf(const graph::Trace& trace, const StepOfPlan& step,
                         const graph::RunOptions& options);
graph::TrainingRun RunOf(const graph::Trace& trace, const StepOfPlan& step,
                         const DeviceSetting& setting);

// Runs on a device of so many bytes, and returns what a plan says about it, or
// nothing if the run ends without memory. The comparison with the defaults
// stays empty. The retries of a run of several shapes are all of them.
std::optional<PlanDevice> FindDeviceUse(const graph::TrainingRun& run,
                                        const DeviceSetting& setting,
                                        int64_t device_bytes);

// Returns the smallest device above one of so many bytes on which the run ends;
// graph::kLargestDevice if there is none.
int64_t LeastLargerDevice(const graph::TrainingRun& run,
                          const DeviceSetting& setting, int64_t device_bytes);

// Returns what a plan says that its run needs with other settings: the smallest device if the
// run ends on one of so many bytes. If it does not, although it may end on a smaller
// one, the smallest larger one.
int64_t LeastDeviceOf(const graph::TrainingRun& run,
                      const DeviceSetting& setting, int64_t device_bytes);

// The memory of a run with a setting: at most, if no device limits it, and the
// smallest device on which it ends.
struct DeviceNeed {
  DeviceSetting setting;
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  std::optional<int64_t> least_device_bytes = {};  // nothing: there is none
};
DeviceNeed FindDeviceNeed(const graph::TrainingRun& run,
                          const DeviceSetting& setting);

// Returns the settings that every program can choose from: the optimizer's state
// in the first update and then first, each with native and then expandable
// segments.
std::vector<DeviceSetting> CommonSettings(graph::PyTorchVersion version);

// Returns the needs of a run of the plan with each of these settings. Throws
// InputError as LiveStep.
std::vector<DeviceNeed> NeedsOfPlan(const graph::Trace& trace,
                                    const std::vector<PlannedModule>& units,
                                    graph::PyTorchVersion version);

}  // namespace acplan::problems
