#include "problems/device_trials.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "graph/allocator/device_memory.h"
#include "graph/allocator/least_device.h"
#include "graph/run/run_on_device.h"

namespace acplan::problems {
namespace {

// The share of the device below which budgets count as equal.
constexpr int64_t kResolution = 400;
// The share of the recomputation above the bound that ends the search.
constexpr double kCloseEnough = 1e-3;

bool IsTried(const TrialSearch& search, int64_t budget_bytes) {
  return std::ranges::find(search.trials, budget_bytes,
                           &DeviceTrial::budget_bytes) != search.trials.end();
}

// Returns the next budget if no trial fits: what the lowest one lacks is taken from its live
// bytes.
std::optional<int64_t> LowerBudget(const TrialSearch& search, size_t setting) {
  const int64_t device_bytes = search.memory_bytes - search.reserve_bytes;
  const DeviceTrial* lowest = nullptr;
  for (const DeviceTrial& trial : search.trials) {
    if (!trial.has_plan) continue;
    if (lowest == nullptr || trial.budget_bytes < lowest->budget_bytes) {
      lowest = &trial;
    }
  }
  const int64_t live = lowest->live_bytes;
  const int64_t lacking = lowest->least_devices[setting] - device_bytes;
  const int64_t least_step = device_bytes / kResolution + 1;
  const int64_t step =
      std::clamp(lacking, least_step, std::max(live / 3, least_step));
  const int64_t next =
      std::max(live - step + search.reserve_bytes,
               std::max<int64_t>(search.least_budget_bytes, 1));
  return IsTried(search, next) ? std::nullopt : std::optional(next);
}

// Halves the way from a trial that fits to the next larger budget that does
// not.
std::optional<int64_t> BudgetAbove(const TrialSearch& search,
                                   const DeviceTrial& best, size_t setting) {
  const int64_t device_bytes = search.memory_bytes - search.reserve_bytes;
  if (best.ms <= search.bound_ms * (1 + kCloseEnough)) return std::nullopt;
  int64_t above = search.memory_bytes;
  for (const DeviceTrial& trial : search.trials) {
    const bool is_above = trial.has_plan &&
                          trial.budget_bytes > best.budget_bytes &&
                          !trial.Fits(setting) && trial.ms < best.ms;
    if (is_above) above = std::min(above, trial.budget_bytes);
  }
  const int64_t next = std::midpoint(best.budget_bytes, above);
  const bool is_near = above - best.budget_bytes <= device_bytes / kResolution;
  return is_near || IsTried(search, next) ? std::nullopt : std::optional(next);
}

}  // namespace

void RunTrial(
    DeviceTrial& trial, const DeviceChoice& choice, int64_t device_bytes,
    const std::function<graph::TrainingRun(const DeviceSetting&)>& run_of) {
  std::map<bool, graph::TrainingRun> runs;  // by makes_state_first
  for (const DeviceSetting& setting : choice.settings) {
    const bool first = setting.makes_state_first;
    if (!runs.contains(first)) runs.emplace(first, run_of(setting));
    const graph::TrainingRun& run = runs.at(first);
    trial.uses.push_back(FindDeviceUse(run, setting, device_bytes));
    if (trial.uses.back()) {
      trial.least_devices.push_back(trial.uses.back()->least_device_bytes);
      continue;
    }
    const std::optional<graph::LeastDevice> least =
        graph::FindLeastDevice(run, setting.config, device_bytes + 1);
    trial.least_devices.push_back(least ? least->bytes : graph::kLargestDevice);
  }
}

std::optional<int64_t> TrialSearch::NextBudget() const {
  const std::vector<int64_t>& devices = trials.front().least_devices;
  const auto setting =
      static_cast<size_t>(std::ranges::min_element(devices) - devices.begin());
  const DeviceTrial* best = BestFor(setting);
  return best == nullptr ? LowerBudget(*this, setting)
                         : BudgetAbove(*this, *best, setting);
}

const DeviceTrial* TrialSearch::BestFor(size_t setting) const {
  const DeviceTrial* best = nullptr;
  for (const DeviceTrial& trial : trials) {
    if (!trial.has_plan || !trial.Fits(setting)) continue;
    if (best == nullptr || trial.ms < best->ms) best = &trial;
  }
  return best;
}

TrialSearch::Best TrialSearch::BestOfAll() const {
  Best best;
  const size_t settings = trials.front().uses.size();
  for (size_t setting = 0; setting < settings; ++setting) {
    const DeviceTrial* trial = BestFor(setting);
    const bool is_better = trial != nullptr && (best.trial == nullptr ||
                                                trial->ms < best.trial->ms);
    if (is_better) best = {.trial = trial, .setting = setting};
  }
  return best;
}

std::optional<int64_t> TrialSearch::LeastDevice() const {
  std::optional<int64_t> least;
  for (const DeviceTrial& trial : trials) {
    for (const int64_t bytes : trial.least_devices) {
      least = std::min(least.value_or(bytes), bytes);
    }
  }
  return least;
}

}  // namespace acplan::problems
