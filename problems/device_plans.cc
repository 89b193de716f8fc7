#include "problems/device_plans.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <numeric>
#include <optional>
#include <stdexcept>
#include <utility>

#include "graph/allocator/device_memory.h"
#include "graph/allocator/least_device.h"
#include "graph/run/run_on_device.h"
#include "problems/any_schedule.h"
#include "problems/check/device_rules.h"

// PyTorch's allocator needs more than live bytes: a hole that the next large block
// does not fit in is lost. How much depends on the plan and can't be said
// before it is run. So the search plans for smaller budgets of live bytes, runs each
// plan with all settings, and keeps those that end. The first plan has the whole
// device as budget. The setting with which it needs the smallest device leads the
// search. While no plan fits with it, the next budget is lower by what the last run
// lacked. Once one fits, the search halves the distance between the budgets of the
// best plan that fits and of the next larger one that does not.

namespace acplan::problems {
namespace {

// Plans beside the first.
constexpr int kMostPlans = 9;
// The share of the device below which budgets count as equal.
constexpr int64_t kResolution = 400;
// The share of the recomputation above the bound that ends the search.
constexpr double kCloseEnough = 1e-3;

// A plan for a budget of live bytes.
struct Trial {
  int64_t budget_bytes = 0;
  PlanOfFamilies best_of_families;
  // Indexed by setting: the way in which the run ends on the device, if it does, and the
  // smallest one on which it does; if it does not, the smallest larger one.
  std::vector<std::optional<PlanDevice>> uses = {};
  std::vector<int64_t> least_devices = {};

  const Plan& plan() const { return best_of_families.plan; }
  double ms() const { return plan().recompute_ms; }
  bool Fits(size_t setting) const { return uses[setting].has_value(); }
};

class DeviceSearch {
 public:
  DeviceSearch(const Question& question, const DeviceChoice& choice)
      : question_(question),
        choice_(choice),
        families_(BuildFamilies(question)),
        device_bytes_(choice.memory_bytes - question.options.reserve_bytes),
        clock_(question.options.limits) {}

  DeviceAnswer Find() && {
    Try(choice_.memory_bytes);
    const bool has_plan = trials_.front().plan().HasPlan();
    for (int k = 0; has_plan && k < kMostPlans && !IsStopped(); ++k) {
      const std::vector<int64_t>& devices = trials_.front().least_devices;
      const std::optional<int64_t> next =
          NextBudget(std::ranges::min_element(devices) - devices.begin());
      if (!next) break;
      Try(*next);
    }
    return Answered();
  }

 private:
  bool IsStopped() const {
    return clock_.Stop() != solver::StoppedBy::kNothing;
  }

  // Half of the time that is left is for the plans to come.
  void Try(int64_t budget_bytes) {
    solver::SearchLimits limits = clock_.Remaining();
    limits.time_limit_s /= 2;
    Trial trial{.budget_bytes = budget_bytes,
                .best_of_families = PlanFor(families_, budget_bytes, limits)};
    if (trial.plan().HasPlan()) {
      RunTrial(trial);
    } else if (trial.plan().minimum_budget_bytes) {
      least_budget_ = *trial.plan().minimum_budget_bytes;
    }
    trials_.push_back(std::move(trial));
  }

  void RunTrial(Trial& trial) const {
    const StepOfPlan step = LiveStep(*question_.trace, trial.plan().modules);
    std::map<bool, graph::TrainingRun> runs;  // by makes_state_first
    for (const DeviceSetting& setting : choice_.settings) {
      const bool first = setting.makes_state_first;
      if (!runs.contains(first)) {
        runs.emplace(first, RunOf(*question_.trace, step, first));
      }
      const graph::TrainingRun& run = runs.at(first);
      trial.uses.push_back(FindDeviceUse(run, setting, device_bytes_));
      if (trial.uses.back()) {
        trial.least_devices.push_back(trial.uses.back()->least_device_bytes);
        continue;
      }
      const std::optional<graph::LeastDevice> least =
          graph::FindLeastDevice(run, setting.config, device_bytes_ + 1);
      trial.least_devices.push_back(least ? least->bytes
                                          : graph::kLargestDevice);
    }
  }

  // Returns the trial with the least recomputation that fits.
  const Trial* BestFor(size_t setting) const {
    const Trial* best = nullptr;
    for (const Trial& trial : trials_) {
      if (!trial.plan().HasPlan() || !trial.Fits(setting)) continue;
      if (best == nullptr || trial.ms() < best->ms()) best = &trial;
    }
    return best;
  }

  std::optional<int64_t> NextBudget(size_t setting) const {
    const Trial* best = BestFor(setting);
    return best == nullptr ? LowerBudget(setting) : BudgetAbove(*best, setting);
  }

  // No trial fits: what the lowest one lacks is taken from its live bytes.
  std::optional<int64_t> LowerBudget(size_t setting) const {
    const Trial* lowest = nullptr;
    for (const Trial& trial : trials_) {
      if (!trial.plan().HasPlan()) continue;
      if (lowest == nullptr || trial.budget_bytes < lowest->budget_bytes) {
        lowest = &trial;
      }
    }
    const int64_t live = lowest->plan().peak_bytes;
    const int64_t lacking = lowest->least_devices[setting] - device_bytes_;
    const int64_t least_step = device_bytes_ / kResolution + 1;
    const int64_t step =
        std::clamp(lacking, least_step, std::max(live / 3, least_step));
    const int64_t next = std::max(live - step + question_.options.reserve_bytes,
                                  std::max<int64_t>(least_budget_, 1));
    return IsTried(next) ? std::nullopt : std::optional(next);
  }

  // Halves the way from a trial that fits to the next larger budget that does
  // not.
  std::optional<int64_t> BudgetAbove(const Trial& best, size_t setting) const {
    const double bound = trials_.front().plan().bound_ms;
    if (best.ms() <= bound * (1 + kCloseEnough)) return std::nullopt;
    int64_t above = choice_.memory_bytes;
    for (const Trial& trial : trials_) {
      const bool is_above = trial.plan().HasPlan() &&
                            trial.budget_bytes > best.budget_bytes &&
                            !trial.Fits(setting) && trial.ms() < best.ms();
      if (is_above) above = std::min(above, trial.budget_bytes);
    }
    const int64_t next = std::midpoint(best.budget_bytes, above);
    const bool is_near =
        above - best.budget_bytes <= device_bytes_ / kResolution;
    return is_near || IsTried(next) ? std::nullopt : std::optional(next);
  }

  bool IsTried(int64_t budget_bytes) const {
    return std::ranges::find(trials_, budget_bytes, &Trial::budget_bytes) !=
           trials_.end();
  }

  DeviceAnswer Answered() {
    const Trial* best = nullptr;
    size_t setting = 0;
    for (size_t a = 0; a < choice_.settings.size(); ++a) {
      const Trial* of_this = BestFor(a);
      const bool is_better =
          of_this != nullptr && (best == nullptr || of_this->ms() < best->ms());
      if (!is_better) continue;
      best = of_this;
      setting = a;
    }
    if (best == nullptr) return WithoutFit();
    const Plan& first = trials_.front().plan();
    Plan plan = best->plan();
    plan.device = best->uses[setting];
    plan.device->gpu = choice_.gpu;
    CompareWithDefaults(*plan.device, *best, setting);
    plan.budget_bytes = choice_.memory_bytes;
    plan.bound_ms = std::min(first.bound_ms, plan.recompute_ms);
    plan.gap = plan.recompute_ms > 0
                   ? (plan.recompute_ms - plan.bound_ms) / plan.recompute_ms
                   : 0;
    plan.status =
        plan.gap <= 1e-9 ? PlanStatus::kOptimal : PlanStatus::kFeasible;
    plan.limit.reset();
    SumUpEffort(plan);
    plan = WithAnySchedule(families_.front().problem, std::move(plan));
    const size_t family = best->best_of_families.family;
    return {.answer = {.families = std::move(families_),
                       .plan = std::move(plan),
                       .family = family}};
  }

  // States what the defaults would do, where they are not what is chosen.
  void CompareWithDefaults(PlanDevice& device, const Trial& best,
                           size_t setting) const {
    for (size_t a = 0; a < choice_.settings.size(); ++a) {
      if (a == setting || !choice_.settings[a].IsDefault()) continue;
      device.default_least_device_bytes = best.least_devices[a];
      if (const Trial* with_defaults = BestFor(a)) {
        device.default_recompute_ms = with_defaults->ms();
      }
    }
  }

  DeviceAnswer WithoutFit() {
    std::optional<int64_t> least;
    for (const Trial& trial : trials_) {
      for (const int64_t bytes : trial.least_devices) {
        least = std::min(least.value_or(bytes), bytes);
      }
    }
    Plan plan = trials_.front().plan();
    if (plan.HasPlan()) {
      const PlanningProblem& problem = families_.front().problem;
      plan = PlanWithoutAnswer(problem, choice_.memory_bytes,
                               solver::StoppedBy::kUnproven);
    }
    SumUpEffort(plan);
    return {
        .answer = {.families = std::move(families_), .plan = std::move(plan)},
        .least_device_bytes = least};
  }

  void SumUpEffort(Plan& plan) const {
    plan.solver.seconds = clock_.Seconds();
    plan.solver.nodes = 0;
    for (const Trial& trial : trials_) {
      plan.solver.nodes += trial.plan().solver.nodes;
    }
  }

  const Question& question_;
  const DeviceChoice& choice_;
  Families families_;
  int64_t device_bytes_ = 0;
  int64_t least_budget_ = 0;  // of any plan, once known
  std::vector<Trial> trials_;
  solver::LimitClock clock_;
};

}  // namespace

DeviceAnswer AskForDevice(const Question& question,
                          const DeviceChoice& choice) {
  DeviceAnswer device_answer = DeviceSearch(question, choice).Find();
  if (const auto broken =
          BrokenDeviceRule(*question.trace, device_answer.answer.plan)) {
    throw std::logic_error("the plan fails its check: " + *broken);
  }
  return device_answer;
}

}  // namespace acplan::problems
