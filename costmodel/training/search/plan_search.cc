// Equal stages differ in the number of microbatches in flight, of which earlier ones have
// more: the first stage of a kind has least room and recomputes most, the last one least.
#include "costmodel/training/search/plan_search.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

namespace acplan::costmodel {
namespace {

double LeastOfStage(const PlanProblem& problem, const StageContent& stage,
                    size_t index) {
  return LeastSeconds(OffersOfStage(problem.layers, stage),
                      RoomOfStage(problem.job, stage, index, problem.budget));
}

// A bound of an iteration, from bounds of parts of its stages.
class BoundSum {
 public:
  // Adds `count` stages from `first`, which recompute for as long as stage `index` must.
  void Add(const PlanProblem& problem, const StageKind& kind, size_t first,
           size_t count, size_t index) {
    if (count == 0 || is_infinite_) return;
    const double seconds = LeastOfStage(problem, kind.content, index);
    is_infinite_ = seconds == std::numeric_limits<double>::infinity();
    kinds_.push_back({kind.content, first, count});
    recomputation_.push_back({.compute = seconds});
  }

  double Seconds(const PlanProblem& problem) const {
    if (is_infinite_) return std::numeric_limits<double>::infinity();
    return CombineStepTime(problem.job, problem.units, kinds_, recomputation_)
        .Total();
  }

 private:
  bool is_infinite_ = false;
  std::vector<StageKind> kinds_ = {};
  std::vector<PassTime> recomputation_ = {};
};

}  // namespace

bool DoesLeastFit(const PlanProblem& problem) {
  const auto bytes = [&](const PlannedLayer& layer, int64_t count) {
    return count == 0
               ? 0
               : static_cast<double>(count) * layer.policies.front().bytes;
  };
  const auto recomputed_bytes = [&](const PlannedLayer& layer, int64_t count) {
    return count == 0 ? 0
                      : layer.offer.whole_bytes - layer.policies.front().bytes;
  };
  const auto& [dense, moe] = problem.layers;
  return std::ranges::all_of(problem.kinds, [&](const StageKind& kind) {
    const StageContent& stage = kind.content;
    const double kept_bytes =
        bytes(dense, stage.dense_layers) + bytes(moe, stage.moe_layers);
    const StageKeeping keeping{.kept_bytes = kept_bytes,
                               .recomputed_bytes = std::max(
                                   recomputed_bytes(dense, stage.dense_layers),
                                   recomputed_bytes(moe, stage.moe_layers))};
    return MemoryOfKeeping(problem.job, stage, kind.first, keeping).Total() <=
           problem.budget + kByteRounding;
  });
}

double QuickPlanBound(const PlanProblem& problem) {
  BoundSum sum;
  for (const StageKind& kind : problem.kinds) {
    sum.Add(problem, kind, kind.first, 1, kind.first);
    sum.Add(problem, kind, kind.first + 1, kind.count - 1,
            kind.first + kind.count - 1);
  }
  return sum.Seconds(problem);
}

double PlanBound(const PlanProblem& problem) {
  BoundSum sum;
  for (const StageKind& kind : problem.kinds) {
    for (size_t i = kind.first; i < kind.first + kind.count; ++i) {
      sum.Add(problem, kind, i, 1, i);
    }
  }
  return sum.Seconds(problem);
}

PlanOutcome PlanOfStrategy(const PlanProblem& problem,
                           const ChoiceEffort& effort, double cutoff,
                           StageChoices known_choices) {
  std::vector<StageKind> single;
  std::vector<PassTime> recomputation;  // a lower bound for each stage
  for (const StageKind& kind : problem.kinds) {
    for (size_t i = kind.first; i < kind.first + kind.count; ++i) {
      single.push_back({kind.content, i, 1});
      recomputation.push_back(
          {.compute = LeastOfStage(problem, kind.content, i)});
    }
  }
  // The stage that recomputes most is likely the one that all others wait for.
  std::vector<size_t> order(single.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::ranges::stable_sort(order, std::greater<>(),
                           [&](size_t i) { return recomputation[i].compute; });
  std::vector<PlannedStage> stages(single.size());
  PlannedStrategy planned_strategy;
  PlanOutcome outcome{.choices = std::move(known_choices)};
  outcome.choices.resize(single.size());
  for (const size_t i : order) {
    std::optional<PolicyChoice>& choice = outcome.choices[i];
    if (!choice || !choice->is_optimal) {
      choice = ChooseLayerPolicies(
          OffersOfStage(problem.layers, single[i].content),
          RoomOfStage(problem.job, single[i].content, i, problem.budget),
          effort);
    }
    if (!choice->is_feasible) {
      if (!choice->is_optimal) return outcome;
      return {.bound = std::numeric_limits<double>::infinity()};
    }
    stages[i] = StageWithChoice(problem.job, problem.layers, single[i].content,
                                i, *choice);
    planned_strategy.bytes =
        std::max(planned_strategy.bytes, stages[i].memory.Total());
    recomputation[i].compute =
        std::max(recomputation[i].compute, choice->bound);
    outcome.bound =
        CombineStepTime(problem.job, problem.units, single, recomputation)
            .Total();
    if (outcome.bound > cutoff) return outcome;
  }
  planned_strategy.seconds =
      TimeOfPlan(problem.job, problem.units, stages).Total();
  if (std::ranges::all_of(stages, &PlannedStage::is_optimal)) {
    outcome.bound = planned_strategy.seconds;
  }
  planned_strategy.bound = outcome.bound;
  for (const auto& choice : outcome.choices)
    planned_strategy.choices.push_back(*choice);
  outcome.plan = planned_strategy;
  return outcome;
}

}  // namespace acplan::costmodel
