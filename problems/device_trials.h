#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "graph/base/flag.h"
#include "graph/run/training_run.h"
#include "problems/plan/device_run.h"

namespace acplan::problems {

// Searches for plans whose run ends on a device try budgets of live bytes: a plan for a
// budget is run with all settings, and the next budget follows from what the runs lacked.

// A device, and the settings that a plan may choose from.
struct DeviceChoice {
  int64_t memory_bytes =
      0;  // that PyTorch's allocator and the reserve can have
  std::vector<DeviceSetting> settings;  // the one preferred first
  std::optional<PlanGpu> gpu = {};      // that has the memory, if it was named
  // Multiplies the time that searches beside the first may take (device_effort.h). With a
  // large one, answers do not depend on the machine's speed.
  double patience = 1;
};

// A plan that was run: the one for a budget, or one that the search for it met.
struct DeviceTrial {
  int64_t budget_bytes = 0;
  bool is_near = false;  // the search met it; it is not the plan for the budget
  bool has_plan = false;
  int64_t live_bytes = 0;  // of the plan, at most
  double ms = 0;           // of its recomputation
  // True for each setting with which the run of the plan ends on the device.
  std::vector<graph::Flag> fits = {};
  // The smallest device on which the run ends, by setting. Empty unless it was asked for and
  // the run ends with no setting.
  std::vector<int64_t> least_devices = {};

  bool FitsAny() const;
};

// Runs with all settings, and notes in the trial how the runs end. `run_of` returns the
// run of a setting, which depends on no allocator. `finds_least`: the least devices are
// asked for.
void RunTrial(
    DeviceTrial& trial, const DeviceChoice& choice, int64_t device_bytes,
    const std::function<graph::TrainingRun(const DeviceSetting&)>& run_of,
    bool finds_least);

// Returns the way in which the run ends with a setting, and what it would do with the
// defaults, where they are not what is chosen.
PlanDevice DeviceOfBest(
    const DeviceChoice& choice, size_t setting, int64_t device_bytes,
    const std::function<graph::TrainingRun(const DeviceSetting&)>& run_of);

// The next budget of a search. Budgets whose plans recompute as much as the best plan that
// fits, or more, are of no use, and neither are smaller ones: the largest of them is the floor.
// While there is none, the next budget is lower than the lowest one by what its run lacked
// with the setting that leads, from the third budget on each time by twice as much: the one with which the first
// plan needs the smallest device. Then the distance between the floor and the next larger
// budget is halved.
struct TrialSearch {
  int64_t memory_bytes = 0;
  int64_t reserve_bytes = 0;
  int64_t least_budget_bytes = 0;  // of any plan, once known
  double bound_ms = 0;             // that no plan recomputes less than
  std::vector<DeviceTrial> trials = {};

  // Returns whether the best plan that fits recomputes hardly more than the bound.
  bool IsCloseEnough() const;

  // Returns nothing if another budget is of no use.
  std::optional<int64_t> NextBudget() const;

  // Returns the budgets whose plans recompute less than the best one that fits, in ascending
  // order.
  std::vector<int64_t> BudgetsOfUse() const;

  // Returns the middle of the widest gap between two of these or the floor; nothing if all
  // are narrow.
  std::optional<int64_t> BudgetInWidestGap() const;

  // Returns null while there is no floor.
  const DeviceTrial* Floor() const;

  // Returns the trial with the least recomputation that fits with a setting; null if
  // there is none.
  const DeviceTrial* BestFor(size_t setting) const;

  // Returns the best of all settings and its setting; null if nothing fits.
  struct Best {
    const DeviceTrial* trial = nullptr;
    size_t setting = 0;
  };
  Best BestOfAll() const;

  // Returns the least device of any trial; nothing if no trial ran.
  std::optional<int64_t> LeastDevice() const;
};

}  // namespace acplan::problems
