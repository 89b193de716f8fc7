#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "graph/run/training_run.h"
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
  kLeastBudget,    // the plan with the least live bytes
  kPlanOfLongest,  // of a table: its last plan, for all lengths
};

// The plans under which a program may run: those that are given, or those of a lever.
enum class ProgramPlan { kGiven, kNone, kLeastBudget, kOfLongest };

// A program that trains on a device.
struct DeviceProgram {
  ProgramPlan plan = ProgramPlan::kGiven;
  DeviceSetting setting;
  // Its makes_state_first and ddp do not count: the setting has them.
  graph::RunOptions run = {};

  // Returns the options of its run, with those of the setting. Throws InputError as
  // RunOptionsOf.
  graph::RunOptions Options() const;
};

// Returns the requests of a program's run.
using RunOfProgram = std::function<graph::TrainingRun(const DeviceProgram&)>;

// A program with levers, and its run.
struct LeverOutcome {
  std::vector<DeviceLever> levers;  // several: set together
  DeviceProgram program;
  DeviceNeed need;
  // The bytes by which the least device is smaller with the levers; below 0, larger.
  int64_t gained_bytes = 0;
};

// Simulates a run with each lever that changes the program: the one that brings most
// first. If several bring something that one program can have, the last outcome is
// that of all of them. `need` is the program's own; `plans` are the levers that replace
// its plan.
std::vector<LeverOutcome> FindLeverOutcomes(
    const RunOfProgram& run_of, const DeviceProgram& program,
    const DeviceNeed& need, const std::vector<DeviceLever>& plans);

}  // namespace acplan::problems
