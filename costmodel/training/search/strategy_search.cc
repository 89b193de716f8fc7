// All strategies, one by one, with shared values computed once.
//
// The time and memory of a layer depend on tensor, context and expert parallelism, the
// microbatch, recomputation and whether parameters are sharded (UnitTimes). The rest of a
// strategy, pipeline, chunks, data parallelism and ZeRO, is a sum over few kinds of stages.
// So an outer loop goes over the former and computes layers, and an inner one over the
// latter.
//
// With the first N layers of each stage recomputed, time rises and memory falls with N:
// each further layer adds its forward pass to a stage and keeps only its input. (Time:
// microbatches x slowest + (sum - slowest) / chunks rises with every stage, as there is at
// least one microbatch.) So the fastest strategy that fits has the least N that fits, which
// bisection finds; no other N can be better. The same holds for the number of layers whose
// activations go to the host.
//
// Plans come last, when the others have set the time to beat (planned_search.h).
#include "costmodel/training/search/strategy_search.h"

#include <oneapi/tbb/parallel_for.h>

#include <algorithm>
#include <limits>
#include <map>
#include <span>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/search/best_strategies.h"
#include "costmodel/training/search/planned_search.h"
#include "costmodel/training/search/thread_seconds.h"
#include "costmodel/training/settings/strategy_settings.h"
#include "costmodel/training/time/step_time.h"

namespace acplan::costmodel {
namespace {

using Kinds = std::vector<StageKind>;

// The values that searches of units have in common.
struct SearchQuestion {
  const TrainingJob& job;
  const StrategySpace& space;
  const std::vector<PipelineLayout>& layouts;
  MemoryLimit limit = {};
  const SearchGoal& goal;
  // The measured runs near the job; null if errors are unknown.
  const MeasuredNeighbours* neighbours = nullptr;
  const StrategySearchClock& clock;
};

// Returns the kind of a job that takes `seconds`, and would take `time` without
// recomputation.
RunKind KindOfTimes(const TrainingJob& job, const StepTime& time,
                    double seconds) {
  RunKind kind = KindOfRun(job, time);
  const double share = time.Total() / seconds;
  kind.host *= share;
  kind.communication *= share;
  kind.bubble *= share;
  return kind;
}

// Keeps the fastest strategy within measured territory, and the distances that are known.
// A key has what differs within a unit: the pipeline, the ranks that share parameters, where
// states wait.
struct MeasuredList {
  BestStrategies fastest = BestStrategies(1);
  std::map<std::tuple<int64_t, int64_t, bool>, double> distances = {};
};

// The search of one unit. Searches of different units run in parallel.
class UnitSearch {
 public:
  UnitSearch(TrainingJob job, const SearchQuestion& question)
      : job_(std::move(job)), question_(question), best_(question.goal.count) {}

  StrategySearch Run();

 private:
  void TryLayers(const Kinds& kinds);
  void TryStatedLayers(const Kinds& kinds);
  void TryOffload(const Kinds& kinds);
  void TryOne(const Kinds& kinds);
  bool Fits(const Kinds& kinds) {
    const double budget = budgets_.Find(question_.limit, job_);
    return MostBytesOf(job_, layers_, kinds, budget) <= budget;
  }
  void Rank(const StepTime& time, double bytes);
  double Distance();

  TrainingJob job_;
  const SearchQuestion& question_;
  BestStrategies best_;
  MeasuredList measured_ = {};
  KnownBudgets budgets_ = {};
  LayerMemories layers_ = {};
  KnownUnitTimes units_ = {};
  StrategySearch result_ = {};
};

void UnitSearch::TryOne(const Kinds& kinds) {
  ++result_.evaluated;
  const double budget = budgets_.Find(question_.limit, job_);
  const double bytes = MostBytesOf(job_, layers_, kinds, budget);
  if (bytes > budget) return;
  ++result_.fitting;
  Rank(CombineStepTime(job_, units_.TimesOf(job_), kinds), bytes);
}

double UnitSearch::Distance() {
  const TrainingStrategy& s = job_.strategy;
  const auto [entry, is_new] = measured_.distances.try_emplace(
      std::tuple(s.pipeline, s.fsdp, s.offloads_states), 0);
  if (is_new) {
    entry->second = question_.neighbours->DistanceTo(KindOfJob(job_));
  }
  return entry->second;
}

// Puts the strategy into the lists in which it may be. Intervals take longest, so they are
// only computed for strategies whose seconds alone do not rule them out: no worst case is
// below the prediction.
void UnitSearch::Rank(const StepTime& time, double bytes) {
  const double seconds = time.Total();
  RankedStrategy ranked{.strategy = job_.strategy,
                        .rank = seconds,
                        .seconds = seconds,
                        .bytes = bytes,
                        .bound = seconds};
  if (question_.neighbours != nullptr && measured_.fastest.MayTake(seconds) &&
      Distance() <= kMeasuredDistance) {
    measured_.fastest.Add(ranked);
  }
  if (!best_.MayTake(seconds)) return;
  if (question_.goal.is_robust) {
    ranked.rank *=
        question_.goal.intervals->At(KindOfRun(job_, time), Distance()).high;
  }
  best_.Add(ranked);
}

// Tries the least number of layers that fits. All layers are written as 0.
void UnitSearch::TryLayers(const Kinds& kinds) {
  int64_t most = 0;
  for (const StageKind& kind : kinds) {
    most = std::max(most, kind.content.Layers());
  }
  int64_t& layers = job_.strategy.full_layers;
  result_.strategies += most;
  int64_t low = 1;
  int64_t high = most;
  layers = 0;
  if (most > 0 && Fits(kinds)) {
    while (low < high) {
      layers = (low + high) / 2;
      ++result_.evaluated;
      if (Fits(kinds)) {
        high = layers;
      } else {
        low = layers + 1;
      }
    }
    layers = low < most ? low : 0;
    TryOne(kinds);
  } else {
    ++result_.evaluated;
  }
  layers = 0;
}

// Tries the layers that were requested, if a stage may have them.
void UnitSearch::TryStatedLayers(const Kinds& kinds) {
  TrainingStrategy& s = job_.strategy;
  const int64_t stage = (job_.shape.layers + s.pipeline - 1) / s.pipeline;
  if (question_.space.full_layers > stage) return;
  ++result_.strategies;
  s.full_layers = question_.space.full_layers;
  TryOne(kinds);
  s.full_layers = 0;
}

// Tries the least number of layers whose offload makes a strategy fit that does not fit
// without it.
void UnitSearch::TryOffload(const Kinds& kinds) {
  TrainingStrategy& s = job_.strategy;
  const int64_t most = question_.job.shape.layers;
  result_.strategies += most;
  const auto fits = [&](int64_t layers) {
    ++result_.evaluated;
    s.offloaded_layers = layers;
    return Fits(kinds);
  };
  int64_t low = 0;  // does not fit
  int64_t high = most;
  if (!fits(low) && fits(high)) {
    while (high - low > 1) {
      const int64_t middle = (low + high) / 2;
      (fits(middle) ? high : low) = middle;
    }
    s.offloaded_layers = high;
    TryOne(kinds);
  }
  s.offloaded_layers = 0;
}

StrategySearch UnitSearch::Run() {
  layers_ = MemoriesOfLayers(job_);
  TrainingStrategy& s = job_.strategy;
  for (const PipelineLayout& layout : question_.layouts) {
    if (question_.clock.HasEnded()) {
      result_.LeaveUntried();
      break;
    }
    if (!IsOfUnit(s, layout, question_.job, question_.space)) continue;
    s = WithLayout(std::move(s), layout);
    for (const Sharding sharding :
         ShardingsOf(s, question_.job, question_.space)) {
      s = WithSharding(std::move(s), sharding);
      if (s.recomputation == Recomputation::kFull &&
          (question_.space.full_layers > 0 || s.every_layers > 0)) {
        TryStatedLayers(layout.kinds);
      } else if (s.recomputation == Recomputation::kFull) {
        TryLayers(layout.kinds);
      } else {
        ++result_.strategies;
        TryOne(layout.kinds);
        if (question_.space.has_offload && s.pipeline == 1 &&
            s.implementation == Implementation::kFused &&
            s.recomputation == Recomputation::kNone) {
          TryOffload(layout.kinds);
        }
      }
    }
  }
  result_.best = best_.Take();
  for (const RankedStrategy& ranked : measured_.fastest.Take()) {
    result_.measured = ranked;
  }
  return std::move(result_);
}

std::vector<StrategySearch> SearchEachUnit(
    const TrainingJob& job, const SearchQuestion& question,
    std::span<const TrainingStrategy> units) {
  std::vector<StrategySearch> parts(units.size());
  oneapi::tbb::parallel_for(size_t{0}, units.size(), [&](size_t i) {
    const double begin = ThreadSeconds();
    TrainingJob of_unit = job;
    of_unit.strategy = units[i];
    parts[i] = UnitSearch(std::move(of_unit), question).Run();
    parts[i].core_seconds = ThreadSeconds() - begin;
  });
  return parts;
}

// Throws std::logic_error, for a defect of this search, if one of its answers is no legal
// strategy.
void RequireLegal(const TrainingJob& job, const RankedStrategy& ranked) {
  TrainingJob checked = job;
  checked.strategy = ranked.strategy;
  try {
    CheckStrategy(job.shape, checked.strategy, "search");
    CheckStatedStrategy(checked);
  } catch (const std::exception& error) {
    throw std::logic_error(error.what());
  }
}

// Adds all members except the strategies.
void Add(const StrategySearch& part, StrategySearch& sum) {
  sum.strategies += part.strategies;
  sum.evaluated += part.evaluated;
  sum.fitting += part.fitting;
  sum.plan_count += part.plan_count;
  sum.unplanned += part.unplanned;
  sum.improvable += part.improvable;
  sum.is_complete &= part.is_complete;
  sum.is_proven &= part.is_proven;
  sum.open_bound = std::min(sum.open_bound, part.open_bound);
  sum.core_seconds += part.core_seconds;
}

StrategySearch Sum(const std::vector<StrategySearch>& parts) {
  StrategySearch sum;
  BestStrategies measured(1);
  for (const StrategySearch& part : parts) {
    Add(part, sum);
    sum.best.insert(sum.best.end(), part.best.begin(), part.best.end());
    if (part.measured) measured.Add(*part.measured);
  }
  for (const RankedStrategy& ranked : measured.Take()) sum.measured = ranked;
  return sum;
}

// Puts plans into the lists.
void AddPlans(const TrainingJob& job, const SearchGoal& goal,
              std::vector<RankedStrategy> plans, StrategySearch& all) {
  BestStrategies best(goal.count);
  for (const RankedStrategy& ranked : all.best) best.Add(ranked);
  for (RankedStrategy& ranked : plans) {
    if (goal.intervals != nullptr) {
      const Confidence confidence =
          goal.intervals->At(KindOfRanked(job, ranked));
      if (confidence.IsMeasured() &&
          (!all.measured || ranked.seconds < all.measured->seconds)) {
        all.measured = ranked;
      }
      if (goal.is_robust) ranked.rank *= confidence.interval.high;
    }
    best.Add(ranked);
  }
  all.best = best.Take();
}

}  // namespace

RunKind KindOfRanked(const TrainingJob& job, const RankedStrategy& ranked) {
  TrainingJob plain = job;
  plain.strategy = ranked.strategy;
  const bool is_plan = ranked.strategy.recomputation == Recomputation::kPlan;
  if (is_plan) plain.strategy.recomputation = Recomputation::kNone;
  const StepTime time = PredictStepTime(plain);
  plain.strategy = ranked.strategy;
  return KindOfTimes(plain, time, is_plan ? ranked.seconds : time.Total());
}

StrategySearch SearchStrategies(const TrainingJob& job,
                                const StrategySpace& space,
                                const MemoryLimit& limit,
                                const SearchGoal& goal,
                                const StrategySearchLimits& limits) {
  const StrategySearchClock clock(limits);
  const std::vector<PipelineLayout> layouts = LayoutsOfSpace(job, space);
  std::vector<TrainingStrategy> units = UnitsOfSpace(job, space);
  const auto plans =
      std::ranges::stable_partition(units, [](const TrainingStrategy& s) {
        return s.recomputation != Recomputation::kPlan;
      });
  std::optional<MeasuredNeighbours> neighbours;
  if (goal.intervals != nullptr) {
    neighbours.emplace(*goal.intervals, KindOfJob(job));
  }
  const SearchQuestion question{
      job,  space, layouts, limit, goal, neighbours ? &*neighbours : nullptr,
      clock};
  StrategySearch all =
      Sum(SearchEachUnit(job, question, {units.begin(), plans.begin()}));
  AddPlans(job, goal, {}, all);
  // No worst case is below the prediction, so plans that are slower than all worst cases do
  // not count.
  const double cutoff = all.best.size() < goal.count
                            ? std::numeric_limits<double>::infinity()
                            : all.best.back().rank;
  const StrategySearch planned_search = SearchPlans(
      {job, space, layouts, limit, goal.count, cutoff, clock}, plans);
  AddPlans(job, goal, planned_search.best, all);
  Add(planned_search, all);
  for (const RankedStrategy& ranked : all.best) RequireLegal(job, ranked);
  return all;
}

}  // namespace acplan::costmodel
