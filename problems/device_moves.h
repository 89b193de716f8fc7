#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/plan/device_run.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

using UnitList = std::vector<graph::CheckpointedModule>;

// A device on which the run of a plan shall end.
struct DeviceGoal {
  DeviceSetting setting;
  int64_t device_bytes = 0;
};

// The outcome of a search by small changes.
struct MovesAnswer {
  std::optional<UnitList>
      units;  // of a plan that fits; nothing: none was found
  // The least device of any plan that was tried, if none fits; nothing: none ran.
  std::optional<int64_t> least_device_bytes;
};

// Searches for a plan of which a run ends on the device, beginning with `starts` and plain
// plans, by small changes: a unit more or less, a group of operators that a unit saves or
// not. Returns the units of one, made cheaper by such changes. Tries a number of plans that
// the length of their runs decides, or until `is_stopped` returns true.
MovesAnswer FindByMoves(const TraceProblem& problem, const DeviceGoal& goal,
                        const std::vector<UnitList>& starts,
                        const std::function<bool()>& is_stopped);

}  // namespace acplan::problems
