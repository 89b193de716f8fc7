#include "problems/trainers/device_emit.h"

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <vector>

#include "problems/check/device_rules.h"
#include "problems/device_plans.h"
#include "problems/trainers/policy_changes.h"

namespace acplan::problems {
namespace {

// Searches beside the first.
constexpr int kMostSearches = 12;

// A policy's step, for runs on a device.
class PolicySteps {
 public:
  PolicySteps(const RestrictedTrace& restriction, const TrainerPolicy& policy)
      : step_(restriction.StepOf(policy.blocks)),
        // Segments are named after their blocks, so that the trace itself has them.
        trace_(step_ == nullptr || policy.blocks.kind == BlockKind::kRuns
                   ? *restriction.problem->trace
                   : step_->trace),
        live_(LiveStep(trace_, ModulesOf(restriction, policy))) {}

  graph::TrainingRun operator()(const DeviceSetting& setting) const {
    return RunOf(trace_, live_, setting);
  }

  const graph::Trace& trace() const { return trace_; }

 private:
  std::shared_ptr<const ChangedStep> step_;
  const graph::Trace& trace_;
  StepOfPlan live_;
};

class Search {
 public:
  Search(const LanguageProblem& language, const DeviceChoice& choice)
      : language_(language),
        choice_(choice),
        search_{.memory_bytes = choice.memory_bytes,
                .reserve_bytes = language.problem().options.reserve_bytes} {}

  // Fills in the solution, or the least device.
  void Find(Emission& emission) && {
    Try(choice_.memory_bytes);
    emission.solution = solutions_.front();
    if (!emission.solution.HasPolicy()) return;
    search_.bound_ms = emission.solution.bound_ms;
    for (int k = 0; k < kMostSearches && !search_.IsCloseEnough(); ++k) {
      const std::optional<int64_t> next = search_.NextBudget();
      if (!next) break;
      Try(*next);
    }
    const auto [best, setting] = search_.BestOfAll();
    const double bound_ms = emission.solution.bound_ms;
    if (best == nullptr) {
      emission.least_device_bytes = search_.LeastDevice();
      emission.solution = {.bound_ms = bound_ms};
      return;
    }
    emission.solution =
        solutions_[static_cast<size_t>(best - search_.trials.data())];
    emission.solution.bound_ms =
        std::min(bound_ms, emission.solution.use.recompute_ms);
    emission.solution.status =
        emission.solution.use.recompute_ms <= bound_ms * (1 + 1e-9)
            ? solver::SearchStatus::kOptimal
            : solver::SearchStatus::kFeasible;
  }

 private:
  int64_t device_bytes() const {
    return search_.memory_bytes - search_.reserve_bytes;
  }

  void Try(int64_t budget_bytes) {
    LanguageSolution solution = SolveLanguage(
        language_.restriction, budget_bytes - search_.reserve_bytes,
        language_.problem().options.limits);
    DeviceTrial trial{.budget_bytes = budget_bytes,
                      .has_plan = solution.HasPolicy(),
                      .live_bytes = solution.use.peak_bytes,
                      .ms = solution.use.recompute_ms};
    if (solution.HasPolicy()) {
      RunTrial(trial, choice_, device_bytes(),
               PolicySteps(language_.restriction, solution.policy),
               /*finds_least=*/search_.Floor() == nullptr);
    }
    search_.trials.push_back(std::move(trial));
    solutions_.push_back(std::move(solution));
  }

  const LanguageProblem& language_;
  const DeviceChoice& choice_;
  TrialSearch search_;
  std::vector<LanguageSolution> solutions_;  // of the trials
};

}  // namespace

std::optional<PlanDevice> DeviceOfPolicy(const RestrictedTrace& restriction,
                                         const TrainerPolicy& policy,
                                         const DeviceChoice& choice,
                                         int64_t reserve_bytes) {
  const PolicySteps steps(restriction, policy);
  DeviceTrial trial{.has_plan = true};
  const int64_t device_bytes = choice.memory_bytes - reserve_bytes;
  RunTrial(trial, choice, device_bytes, steps, /*finds_least=*/false);
  const auto first = std::ranges::find_if(
      trial.fits, [](graph::Flag fits) -> bool { return fits; });
  if (first == trial.fits.end()) return std::nullopt;
  return DeviceOfBest(choice, static_cast<size_t>(first - trial.fits.begin()),
                      device_bytes, steps);
}

Emission EmitForDevice(const Question& question, const DeviceChoice& choice,
                       const Trainer& trainer, const std::string& blocks) {
  const LanguageProblem language =
      BuildLanguageProblem(question, trainer.language, blocks);
  Emission emission{.budget_bytes = choice.memory_bytes,
                    .notes = language.restriction.notes};
  Search(language, choice).Find(emission);
  if (emission.solution.HasPolicy()) {
    const TrainerPolicy policy = emission.solution.policy;
    DescribePolicy(language, trainer, emission);
    emission.plan.device = DeviceOfPolicy(language.restriction, policy, choice,
                                          question.options.reserve_bytes);
    const PolicySteps steps(language.restriction, policy);
    if (const auto broken = BrokenDeviceRule(steps.trace(), emission.plan)) {
      throw std::logic_error(*broken);
    }
  } else if (emission.solution.status == solver::SearchStatus::kInfeasible) {
    emission.least =
        LeastOfLanguage(language.restriction, question.options.limits);
  }
  emission.free_plan = AskForDevice(question, choice).answer.plan;
  return emission;
}

}  // namespace acplan::problems
