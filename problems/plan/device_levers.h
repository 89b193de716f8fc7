#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/run/training_run.h"
#include "graph/trace/trace.h"
#include "problems/plan/device_run.h"

namespace acplan::problems {

// A change with which a run may end on a smaller device.
enum class DeviceLever {
  kExpandableSegments,
  kMaxSplitSize,  // of the sizes tried, the one with the smallest device
  kStateFirst,
  kLargestFirst,
  kEmptyAfterForward,
  kEmptyBeforeUpdate,
  kEmptyBeforeFirstUpdate,
  kNoPlan,
  kLeastBudget,  // the plan with the least live bytes
};

// A program that repeats the step of a plan.
struct DeviceProgram {
  const StepOfPlan* step = nullptr;
  DeviceSetting setting;
  graph::RunOptions run = {};  // with the setting's makes_state_first
};

// Returns the requests of its run. `trace` is the plan's.
graph::TrainingRun RunOf(const graph::Trace& trace,
                         const DeviceProgram& program);

// A program with levers, and its run.
struct LeverOutcome {
  std::vector<DeviceLever> levers;  // several: set together
  DeviceProgram program;
  DeviceNeed need;
  // The bytes by which the least device is smaller with the levers; below 0, larger.
  int64_t gained_bytes = 0;
};

// The steps that levers replace the program's by; null: does not apply.
struct LeverSteps {
  const StepOfPlan* without_plan = nullptr;
  const StepOfPlan* least_budget = nullptr;
};

// Simulates a run with each lever that changes the program: the one that brings most
// first. If several bring something that one program can have, the last outcome is
// that of all of them. `need` is the program's own.
std::vector<LeverOutcome> FindLeverOutcomes(const graph::Trace& trace,
                                            const DeviceProgram& program,
                                            const DeviceNeed& need,
                                            const LeverSteps& steps);

}  // namespace acplan::problems
