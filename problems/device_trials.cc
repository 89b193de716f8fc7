#include "problems/device_trials.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
#include <set>

#include "graph/allocator/device_memory.h"
#include "graph/allocator/least_device.h"
#include "graph/run/run_on_device.h"

namespace acplan::problems {
namespace {

// The share of the device below which budgets count as equal.
constexpr int64_t kResolution = 400;
// The share of the recomputation that is not worth another search.
constexpr double kCloseEnough = 1e-2;
// The next lower budget is lower by what the last one lacks, at most so often doubled.
constexpr int64_t kMostDoublings = 6;

bool IsTried(const TrialSearch& search, int64_t budget_bytes) {
  return std::ranges::find(search.trials, budget_bytes,
                           &DeviceTrial::budget_bytes) != search.trials.end();
}

// Returns the next budget if there is no floor: what the lowest one lacks is taken from its
// live bytes.
std::optional<int64_t> LowerBudget(const TrialSearch& search) {
  const std::vector<int64_t>& devices = search.trials.front().least_devices;
  const auto setting = std::ranges::min_element(devices) - devices.begin();
  const int64_t device_bytes = search.memory_bytes - search.reserve_bytes;
  const DeviceTrial* lowest = nullptr;
  int64_t plan_count = 0;
  for (const DeviceTrial& trial : search.trials) {
    if (!trial.has_plan || trial.is_near) continue;
    ++plan_count;
    if (lowest == nullptr || trial.budget_bytes < lowest->budget_bytes) {
      lowest = &trial;
    }
  }
  const int64_t times =
      int64_t{1} << std::clamp<int64_t>(plan_count - 2, 0, kMostDoublings);
  const int64_t live = lowest->live_bytes;
  const int64_t lacking = lowest->least_devices[setting] - device_bytes;
  const int64_t least_step = device_bytes / kResolution + 1;
  const int64_t most_step = std::max(live / 3, least_step);
  const int64_t step = lacking > most_step / times
                           ? most_step
                           : std::max(times * lacking, least_step);
  const int64_t next =
      std::max(live - step + search.reserve_bytes,
               std::max<int64_t>(search.least_budget_bytes, 1));
  return IsTried(search, next) ? std::nullopt : std::optional(next);
}

// Halves the way from the floor to the next larger budget, unless its plan recomputes hardly
// less than the best one.
std::optional<int64_t> BudgetAbove(const TrialSearch& search,
                                   const DeviceTrial& floor, double best_ms) {
  const int64_t device_bytes = search.memory_bytes - search.reserve_bytes;
  int64_t above = search.memory_bytes;
  double least_ms = search.bound_ms;
  for (const DeviceTrial& trial : search.trials) {
    if (!trial.has_plan || trial.is_near ||
        trial.budget_bytes <= floor.budget_bytes) {
      continue;
    }
    // Budgets down to what the plan needs have the same plan.
    const int64_t of_plan = trial.live_bytes + search.reserve_bytes;
    const int64_t end =
        of_plan > floor.budget_bytes ? of_plan : trial.budget_bytes;
    if (end > above) continue;
    above = end;
    least_ms = trial.ms;
  }
  if (best_ms <= least_ms * (1 + kCloseEnough)) return std::nullopt;
  const int64_t next = std::midpoint(floor.budget_bytes, above);
  const bool is_near = above - floor.budget_bytes <= device_bytes / kResolution;
  return is_near || IsTried(search, next) ? std::nullopt : std::optional(next);
}

// The runs of a plan: one for all settings that make the state at the same time.
class RunsOfPlan {
 public:
  explicit RunsOfPlan(
      const std::function<graph::TrainingRun(const DeviceSetting&)>& run_of)
      : run_of_(run_of) {}

  const graph::TrainingRun& For(const DeviceSetting& setting) {
    const bool first = setting.makes_state_first;
    if (!runs_.contains(first)) runs_.emplace(first, run_of_(setting));
    return runs_.at(first);
  }

 private:
  const std::function<graph::TrainingRun(const DeviceSetting&)>& run_of_;
  std::map<bool, graph::TrainingRun> runs_;  // by makes_state_first
};

}  // namespace

bool DeviceTrial::FitsAny() const {
  return std::ranges::any_of(fits, std::identity{}, &graph::Flag::is_set);
}

void RunTrial(
    DeviceTrial& trial, const DeviceChoice& choice, int64_t device_bytes,
    const std::function<graph::TrainingRun(const DeviceSetting&)>& run_of,
    bool finds_least) {
  RunsOfPlan runs(run_of);
  for (const DeviceSetting& setting : choice.settings) {
    trial.fits.push_back(
        graph::RunOnDevice(runs.For(setting), setting.config, device_bytes)
            .Fits());
  }
  if (!finds_least || trial.FitsAny()) return;
  for (const DeviceSetting& setting : choice.settings) {
    trial.least_devices.push_back(
        LeastLargerDevice(runs.For(setting), setting, device_bytes));
  }
}

PlanDevice DeviceOfBest(
    const DeviceChoice& choice, size_t setting, int64_t device_bytes,
    const std::function<graph::TrainingRun(const DeviceSetting&)>& run_of) {
  RunsOfPlan runs(run_of);
  const DeviceSetting& best = choice.settings[setting];
  PlanDevice device = FindDeviceUse(runs.For(best), best, device_bytes).value();
  device.gpu = choice.gpu;
  for (size_t a = 0; a < choice.settings.size(); ++a) {
    const DeviceSetting& other = choice.settings[a];
    if (a == setting || !other.IsDefault()) continue;
    device.default_least_device_bytes =
        LeastDeviceOf(runs.For(other), other, device_bytes);
  }
  return device;
}

const DeviceTrial* TrialSearch::Floor() const {
  const DeviceTrial* best = BestOfAll().trial;
  if (best == nullptr) return nullptr;
  const DeviceTrial* floor = nullptr;
  for (const DeviceTrial& trial : trials) {
    if (!trial.has_plan || trial.is_near || trial.ms < best->ms) continue;
    if (floor == nullptr || trial.budget_bytes > floor->budget_bytes) {
      floor = &trial;
    }
  }
  return floor;
}

bool TrialSearch::IsCloseEnough() const {
  const DeviceTrial* best = BestOfAll().trial;
  return best != nullptr && best->ms <= bound_ms * (1 + kCloseEnough);
}

std::optional<int64_t> TrialSearch::NextBudget() const {
  if (IsCloseEnough()) return std::nullopt;
  const DeviceTrial* best = BestOfAll().trial;
  const DeviceTrial* floor = Floor();
  return floor == nullptr ? LowerBudget(*this)
                          : BudgetAbove(*this, *floor, best->ms);
}

std::vector<int64_t> TrialSearch::BudgetsOfUse() const {
  const DeviceTrial* best = BestOfAll().trial;
  std::set<int64_t> budgets;
  for (const DeviceTrial& trial : trials) {
    if (!trial.has_plan || trial.is_near) continue;
    if (best == nullptr || trial.ms < best->ms) {
      budgets.insert(trial.budget_bytes);
    }
  }
  return {budgets.begin(), budgets.end()};
}

std::optional<int64_t> TrialSearch::BudgetInWidestGap() const {
  std::vector<int64_t> budgets = BudgetsOfUse();
  const DeviceTrial* floor = Floor();
  if (floor != nullptr) budgets.insert(budgets.begin(), floor->budget_bytes);
  std::optional<int64_t> middle;
  int64_t widest = (memory_bytes - reserve_bytes) / kResolution;
  for (size_t k = 1; k < budgets.size(); ++k) {
    const int64_t gap = budgets[k] - budgets[k - 1];
    if (gap <= widest) continue;
    widest = gap;
    middle = std::midpoint(budgets[k - 1], budgets[k]);
  }
  return middle && IsTried(*this, *middle) ? std::nullopt : middle;
}

const DeviceTrial* TrialSearch::BestFor(size_t setting) const {
  const DeviceTrial* best = nullptr;
  for (const DeviceTrial& trial : trials) {
    if (!trial.has_plan || !trial.fits[setting]) continue;
    if (best == nullptr || trial.ms < best->ms) best = &trial;
  }
  return best;
}

TrialSearch::Best TrialSearch::BestOfAll() const {
  Best best;
  const size_t settings = trials.empty() ? 0 : trials.front().fits.size();
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
