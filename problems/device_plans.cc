#include "problems/device_plans.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <stdexcept>
#include <utility>

#include "problems/any_schedule.h"
#include "problems/check/device_rules.h"

// PyTorch's allocator needs more than live bytes: a hole that the next large block
// does not fit in is lost. How much depends on the plan and can't be said
// before it is run. So the search plans for smaller budgets of live bytes, runs each
// plan with all settings, and keeps those that end (device_trials.h). The first plan
// has the whole device as budget.

namespace acplan::problems {
namespace {

// Plans beside the first.
constexpr int kMostPlans = 9;

class DeviceSearch {
 public:
  DeviceSearch(const Question& question, const DeviceChoice& choice)
      : question_(question),
        choice_(choice),
        families_(BuildFamilies(question)),
        search_{.memory_bytes = choice.memory_bytes,
                .reserve_bytes = question.options.reserve_bytes},
        clock_(question.options.limits) {}

  DeviceAnswer Find() && {
    Try(choice_.memory_bytes);
    const bool has_plan = plans_.front().plan.HasPlan();
    if (has_plan) search_.bound_ms = plans_.front().plan.bound_ms;
    for (int k = 0; has_plan && k < kMostPlans && !IsStopped(); ++k) {
      const std::optional<int64_t> next = search_.NextBudget();
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
    PlanOfFamilies best = PlanFor(families_, budget_bytes, limits);
    const Plan& plan = best.plan;
    DeviceTrial trial{.budget_bytes = budget_bytes,
                      .has_plan = plan.HasPlan(),
                      .live_bytes = plan.peak_bytes,
                      .ms = plan.recompute_ms};
    if (plan.HasPlan()) {
      const StepOfPlan step = LiveStep(*question_.trace, plan.modules);
      RunTrial(trial, choice_, search_.memory_bytes - search_.reserve_bytes,
               [&](const DeviceSetting& setting) {
                 return RunOf(*question_.trace, step, setting);
               });
    } else if (plan.minimum_budget_bytes) {
      search_.least_budget_bytes = *plan.minimum_budget_bytes;
    }
    search_.trials.push_back(std::move(trial));
    plans_.push_back(std::move(best));
  }

  const PlanOfFamilies& PlanOf(const DeviceTrial& trial) const {
    return plans_[static_cast<size_t>(&trial - search_.trials.data())];
  }

  DeviceAnswer Answered() {
    const auto [best, setting] = search_.BestOfAll();
    if (best == nullptr) return WithoutFit();
    const Plan& first = plans_.front().plan;
    Plan plan = PlanOf(*best).plan;
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
    const size_t family = PlanOf(*best).family;
    return {.answer = {.families = std::move(families_),
                       .plan = std::move(plan),
                       .family = family}};
  }

  // States what the defaults would do, where they are not what is chosen.
  void CompareWithDefaults(PlanDevice& device, const DeviceTrial& best,
                           size_t setting) const {
    for (size_t a = 0; a < choice_.settings.size(); ++a) {
      if (a == setting || !choice_.settings[a].IsDefault()) continue;
      device.default_least_device_bytes = best.least_devices[a];
      if (const DeviceTrial* with_defaults = search_.BestFor(a)) {
        device.default_recompute_ms = with_defaults->ms;
      }
    }
  }

  DeviceAnswer WithoutFit() {
    Plan plan = plans_.front().plan;
    if (plan.HasPlan()) {
      const PlanningProblem& problem = families_.front().problem;
      plan = PlanWithoutAnswer(problem, choice_.memory_bytes,
                               solver::StoppedBy::kUnproven);
    }
    SumUpEffort(plan);
    return {
        .answer = {.families = std::move(families_), .plan = std::move(plan)},
        .least_device_bytes = search_.LeastDevice()};
  }

  void SumUpEffort(Plan& plan) const {
    plan.solver.seconds = clock_.Seconds();
    plan.solver.nodes = 0;
    for (const PlanOfFamilies& other : plans_) {
      plan.solver.nodes += other.plan.solver.nodes;
    }
  }

  const Question& question_;
  const DeviceChoice& choice_;
  Families families_;
  TrialSearch search_;
  std::vector<PlanOfFamilies> plans_;  // by trial
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
