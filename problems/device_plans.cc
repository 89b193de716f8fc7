#include "problems/device_plans.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <optional>
#include <stdexcept>
#include <utility>
#include <variant>
#include <vector>

#include "graph/allocator/device_memory.h"
#include "problems/any_schedule.h"
#include "problems/check/device_rules.h"
#include "problems/device_effort.h"
#include "problems/device_moves.h"
#include "problems/times_off_plans.h"
#include "problems/trace/problem/trace_problem.h"

// PyTorch's allocator needs more than live bytes: a hole that the next large block
// does not fit in is lost. How much depends on the plan and can't be said
// before it is run. So the search plans for smaller budgets of live bytes, runs each
// plan with all settings, and keeps those that end (device_trials.h). The first plan
// has the whole device as budget. Each of these searches meets many plans that need about as
// much and leave other holes: those that recompute less than the best plan so far
// are run as well, the cheapest one first. If no plan ends, small changes of the plans are
// tried (device_moves.h).

namespace acplan::problems {
namespace {

// Searches beside the first: in all, between the floor and larger budgets, and in gaps.
constexpr int kMostSearches = 12;
constexpr int kMostAboveFloor = 4;
constexpr int kMostInGaps = 4;
// The operators of the plans that a search met and that are run, summed: so many, but at
// least so many plans.
constexpr int64_t kMostNearOperators = 30'000;
constexpr int64_t kFewestNear = 2;

using RunOfSetting = std::function<graph::TrainingRun(const DeviceSetting&)>;

// Returns the runs of a plan.
RunOfSetting RunsOf(const graph::Trace& trace, const Plan& plan) {
  return [&trace,
          step = LiveStep(trace, plan.modules)](const DeviceSetting& setting) {
    return RunOf(trace, step, setting);
  };
}

// Runs a plan that a search met.
DeviceTrial RunNear(const PlanningProblem& problem, const NearPlan& plan,
                    const DeviceChoice& choice, int64_t device_bytes) {
  DeviceTrial trial{.is_near = true,
                    .has_plan = true,
                    .live_bytes = plan.peak_bytes,
                    .ms = plan.ms};
  const auto& formulation = std::get<TraceProblem>(problem.formulation);
  const StepOfPlan step{.with_segments = {},
                        .step = formulation.simulator.Live(plan.modules)};
  RunTrial(
      trial, choice, device_bytes,
      [&](const DeviceSetting& setting) {
        return RunOf(*problem.trace, step, setting);
      },
      /*finds_least=*/false);
  return trial;
}

// Returns the least recomputation of a plan that fits with the defaults.
std::optional<double> RecomputationWithDefaults(const TrialSearch& search,
                                                const DeviceChoice& choice) {
  std::optional<double> least_ms;
  for (size_t a = 0; a < choice.settings.size(); ++a) {
    const DeviceTrial* trial =
        choice.settings[a].IsDefault() ? search.BestFor(a) : nullptr;
    if (trial != nullptr) least_ms = trial->ms;
  }
  return least_ms;
}

// A series of searches for each family, and the plans that they met.
struct FamilySeries {
  FamilySeries(const Families& families, int64_t near_bytes)
      : met(families.size()) {
    for (const FamilyProblem& family : families) {
      memos.emplace_back(std::get<TraceProblem>(family.problem.formulation));
      all.push_back({.near_bytes = near_bytes, .memo = &memos.back()});
    }
  }

  void AddMet(const std::vector<std::vector<NearPlan>>& near) {
    for (size_t f = 0; f < near.size(); ++f) {
      met[f].insert(met[f].end(), near[f].begin(), near[f].end());
    }
  }

  // Returns for each family the plan within the live bytes that recomputes least, if one
  // was met.
  std::vector<LeastAnswer> MetWithin(int64_t live_bytes) const {
    std::vector<LeastAnswer> answers;
    for (const std::vector<NearPlan>& of_family : met) {
      const NearPlan* best = nullptr;
      for (const NearPlan& plan : of_family) {
        if (plan.peak_bytes > live_bytes) continue;
        if (best == nullptr || plan.ms < best->ms) best = &plan;
      }
      answers.emplace_back();
      if (best != nullptr) answers.back().units.modules = best->modules;
    }
    return answers;
  }

  std::deque<PolicyMemo> memos;  // which refer to the problems
  std::vector<SearchSeries> all;
  std::vector<std::vector<NearPlan>> met;
};

// Returns the trial whose plan needs the smallest device, and with which setting, if no run
// of any ends.
TrialSearch::Best NearestOf(const TrialSearch& search) {
  const auto nearest =
      std::ranges::min_element(search.trials, {}, [](const DeviceTrial& trial) {
        return trial.has_plan ? std::ranges::min(trial.least_devices)
                              : graph::kLargestDevice;
      });
  const auto setting = std::ranges::min_element(nearest->least_devices) -
                       nearest->least_devices.begin();
  return {.trial = &*nearest, .setting = static_cast<size_t>(setting)};
}

// Returns how many plans that a search met are run.
int64_t MostNear(const graph::Trace& trace) {
  return std::max(kFewestNear,
                  kMostNearOperators / (1 + std::ssize(trace.operators)));
}

class DeviceSearch {
 public:
  DeviceSearch(const Question& question, const DeviceChoice& choice)
      : effort_(question.options.limits, choice.patience),
        question_(question),
        choice_(choice),
        families_(BuildFamilies(question)),
        search_{.memory_bytes = choice.memory_bytes,
                .reserve_bytes = question.options.reserve_bytes},
        series_(families_, device_bytes()) {}

  DeviceAnswer Find() && {
    Try(choice_.memory_bytes);
    if (!plans_.front().plan.HasPlan()) return Answered();
    search_.bound_ms = plans_.front().plan.bound_ms;
    for (int k = 0, above_floor = 0; k < kMostSearches && MayTryAnother();
         ++k) {
      if (search_.Floor() != nullptr && ++above_floor > kMostAboveFloor) break;
      const std::optional<int64_t> next = search_.NextBudget();
      if (!next) break;
      Try(*next);
    }
    TryLonger();
    if (search_.BestOfAll().trial == nullptr) TryMoves();
    return Answered();
  }

 private:
  bool MayTryAnother() const {
    return !search_.IsCloseEnough() && effort_.MayTryAnother();
  }

  // Spends what is left of the time: longer searches meet more plans. Searches again for the
  // budgets whose plans are of use, the smallest first, and then in the middle of the widest
  // gap between two of them: what fits is no question of bytes alone.
  void TryLonger() {
    effort_.BeginLonger();
    for (const int64_t budget : search_.BudgetsOfUse()) {
      if (MayTryAnother() && budget < choice_.memory_bytes) Try(budget);
    }
    for (int k = 0; k < kMostInGaps && MayTryAnother(); ++k) {
      const std::optional<int64_t> next = search_.BudgetInWidestGap();
      if (!next) return;
      Try(*next);
    }
  }

  void Try(int64_t budget_bytes) {
    const bool fits = search_.BestOfAll().trial != nullptr;
    PlanOfFamilies best = PlanFor(
        families_, budget_bytes, effort_.Limits(fits),
        series_.MetWithin(budget_bytes - search_.reserve_bytes), series_.all);
    if (!effort_.HasEndedFirst()) effort_.EndFirst();
    const std::vector<std::vector<NearPlan>> near = std::move(best.near);
    const Plan& plan = best.plan;
    if (!plan.HasPlan() && plan.minimum_budget_bytes) {
      search_.least_budget_bytes = *plan.minimum_budget_bytes;
    }
    DeviceTrial trial{.budget_bytes = budget_bytes,
                      .has_plan = plan.HasPlan(),
                      .live_bytes = plan.peak_bytes,
                      .ms = plan.recompute_ms};
    if (plan.HasPlan()) {
      RunTrial(trial, choice_, device_bytes(), RunsOf(*question_.trace, plan),
               /*finds_least=*/search_.Floor() == nullptr);
    }
    search_.trials.push_back(std::move(trial));
    plans_.push_back(std::move(best));
    const DeviceTrial of_budget = search_.trials.back();
    for (size_t f = 0; f < near.size(); ++f) TryNear(near[f], f, of_budget);
    series_.AddMet(near);
  }

  // Runs plans of a family that the search for a budget met, in the order in which they
  // recompute more, until one fits.
  void TryNear(const std::vector<NearPlan>& near, size_t family,
               const DeviceTrial& of_budget) {
    const PlanningProblem& problem = families_[family].problem;
    const int64_t most = MostNear(*problem.trace);
    int64_t runs = 0;
    for (const NearPlan& plan : near) {
      const DeviceTrial* best = search_.BestOfAll().trial;
      const bool is_of_use = best == nullptr || plan.ms < best->ms;
      if (!is_of_use || runs >= most || effort_.IsStopped()) return;
      if (plan.ms == of_budget.ms && plan.peak_bytes == of_budget.live_bytes) {
        continue;
      }
      ++runs;
      DeviceTrial trial = RunNear(problem, plan, choice_, device_bytes());
      if (!trial.FitsAny()) continue;
      AddUnits(std::move(trial), plan.modules, family);
      return;
    }
  }

  void AddUnits(DeviceTrial trial, const UnitList& units, size_t family) {
    search_.trials.push_back(std::move(trial));
    plans_.push_back({.plan = PlanOfUnits(families_[family].problem,
                                          plans_.front().plan, units),
                      .family = family});
  }

  // Changes the plans of the trials until one fits, in the family and with the setting
  // of the trial that needs the smallest device.
  void TryMoves() {
    effort_.BeginChanges();
    const auto [nearest, setting] = NearestOf(search_);
    const size_t family = PlanOf(*nearest).family;
    std::vector<UnitList> starts;
    for (const PlanOfFamilies& other : plans_) {
      if (!other.plan.HasPlan()) continue;
      starts.push_back(UnitsIn(families_[family], other.plan).modules);
    }
    const PlanningProblem& problem = families_[family].problem;
    const MovesAnswer moves = FindByMoves(
        std::get<TraceProblem>(problem.formulation),
        {.setting = choice_.settings[setting], .device_bytes = device_bytes()},
        starts, [&] { return !effort_.MayChangePlans(); });
    least_device_of_moves_ = moves.least_device_bytes;
    if (!moves.units) return;
    const graph::Simulation use = std::get<TraceProblem>(problem.formulation)
                                      .simulator.Simulate(*moves.units);
    const NearPlan plan{.modules = *moves.units,
                        .ms = use.recompute_ms,
                        .peak_bytes = use.peak_bytes};
    AddUnits(RunNear(problem, plan, choice_, device_bytes()), plan.modules,
             family);
  }

  int64_t device_bytes() const {
    return search_.memory_bytes - search_.reserve_bytes;
  }

  const PlanOfFamilies& PlanOf(const DeviceTrial& trial) const {
    return plans_[static_cast<size_t>(&trial - search_.trials.data())];
  }

  DeviceAnswer Answered() {
    const auto [best, setting] = search_.BestOfAll();
    if (best == nullptr) return WithoutFit();
    const Plan& first = plans_.front().plan;
    Plan plan = PlanOf(*best).plan;
    plan.device = DeviceOfBest(choice_, setting, device_bytes(),
                               RunsOf(*question_.trace, plan));
    if (plan.device->default_least_device_bytes) {
      plan.device->default_recompute_ms =
          RecomputationWithDefaults(search_, choice_);
    }
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

  DeviceAnswer WithoutFit() {
    Plan plan = plans_.front().plan;
    if (plan.HasPlan()) {
      const PlanningProblem& problem = families_.front().problem;
      plan = PlanWithoutAnswer(problem, choice_.memory_bytes,
                               solver::StoppedBy::kUnproven);
    }
    SumUpEffort(plan);
    std::optional<int64_t> least = search_.LeastDevice();
    if (least && least_device_of_moves_) {
      least = std::min(*least, *least_device_of_moves_);
    }
    return {
        .answer = {.families = std::move(families_), .plan = std::move(plan)},
        .least_device_bytes = least};
  }

  void SumUpEffort(Plan& plan) const {
    plan.solver.seconds = effort_.Seconds();
    plan.solver.nodes = 0;
    for (const PlanOfFamilies& other : plans_) {
      plan.solver.nodes += other.plan.solver.nodes;
    }
  }

  DeviceEffort effort_;
  const Question& question_;
  const DeviceChoice& choice_;
  Families families_;
  TrialSearch search_;
  FamilySeries series_;
  std::vector<PlanOfFamilies> plans_;  // by trial
  std::optional<int64_t> least_device_of_moves_ = {};
};

}  // namespace

DeviceAnswer AskForDevice(const Question& question,
                          const DeviceChoice& choice) {
  DeviceAnswer device_answer = DeviceSearch(question, choice).Find();
  if (const auto broken =
          BrokenDeviceRule(*question.trace, device_answer.answer.plan)) {
    throw std::logic_error("the plan fails its check: " + *broken);
  }
  device_answer.answer = WithTimesOff(question, std::move(device_answer.answer),
                                      question.options.limits);
  return device_answer;
}

}  // namespace acplan::problems
