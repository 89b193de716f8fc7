#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

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
};

// A budget that was tried. Indexed by setting: the way in which the run ends on the
// device, if it does, and the smallest device on which it does; if it does not, the
// smallest larger one.
struct DeviceTrial {
  int64_t budget_bytes = 0;
  bool has_plan = false;
  int64_t live_bytes = 0;  // of the plan, at most
  double ms = 0;           // of its recomputation
  std::vector<std::optional<PlanDevice>> uses = {};
  std::vector<int64_t> least_devices = {};

  bool Fits(size_t setting) const { return uses[setting].has_value(); }
};

// Runs with all settings, and notes in the trial how the runs end. `run_of` returns the
// run of a setting, which depends on no allocator.
void RunTrial(
    DeviceTrial& trial, const DeviceChoice& choice, int64_t device_bytes,
    const std::function<graph::TrainingRun(const DeviceSetting&)>& run_of);

// The next budget of a search. The setting with which the first plan needs the smallest
// device leads. While no plan fits with it, the next budget is lower by what the last
// run lacked. Once one fits, the distance between the budgets of the best plan that fits
// and of the next larger one that does not is halved.
struct TrialSearch {
  int64_t memory_bytes = 0;
  int64_t reserve_bytes = 0;
  int64_t least_budget_bytes = 0;  // of any plan, once known
  double bound_ms = 0;             // that no plan recomputes less than
  std::vector<DeviceTrial> trials = {};

  // Returns nothing if another budget is of no use.
  std::optional<int64_t> NextBudget() const;

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
