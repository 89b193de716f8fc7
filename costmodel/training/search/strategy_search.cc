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
#include <span>
#include <stdexcept>
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
  size_t count = 0;
  const StrategySearchClock& clock;
};

// The search of one unit. Searches of different units run in parallel.
class UnitSearch {
 public:
  UnitSearch(TrainingJob job, const SearchQuestion& question)
      : job_(std::move(job)), question_(question), best_(question.count) {}

  StrategySearch Run();

 private:
  void TryLayers(const Kinds& kinds);
  void TryStatedLayers(const Kinds& kinds);
  void TryOffload(const Kinds& kinds);
  void TryOne(const Kinds& kinds);

  TrainingJob job_;
  const SearchQuestion& question_;
  BestStrategies best_;
  double budget_ = 0;  // of the strategy that is tried
  LayerMemories layers_ = {};
  KnownUnitTimes units_ = {};
  StrategySearch result_ = {};
};

void UnitSearch::TryOne(const Kinds& kinds) {
  ++result_.evaluated;
  const double bytes = MostBytesOf(job_, layers_, kinds);
  if (bytes > budget_) return;
  ++result_.fitting;
  const double seconds =
      CombineStepTime(job_, units_.TimesOf(job_), kinds).Total();
  if (best_.MayTake(seconds))
    best_.Add({job_.strategy, seconds, bytes, seconds});
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
  if (most > 0 && MostBytesOf(job_, layers_, kinds) <= budget_) {
    while (low < high) {
      layers = (low + high) / 2;
      ++result_.evaluated;
      if (MostBytesOf(job_, layers_, kinds) <= budget_) {
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

// Tries the number of layers that was requested, if a stage may have it.
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
    return MostBytesOf(job_, layers_, kinds) <= budget_;
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
      // Neither recomputed nor offloaded layers change it.
      budget_ = PyTorchBytes(question_.limit, job_);
      if (s.recomputation == Recomputation::kFull &&
          question_.space.full_layers > 0) {
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

// Adds all members except `best`.
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
  for (const StrategySearch& part : parts) {
    Add(part, sum);
    sum.best.insert(sum.best.end(), part.best.begin(), part.best.end());
  }
  return sum;
}

}  // namespace

StrategySearch SearchStrategies(const TrainingJob& job,
                                const StrategySpace& space,
                                const MemoryLimit& limit, size_t count,
                                const StrategySearchLimits& limits) {
  const StrategySearchClock clock(limits);
  const std::vector<PipelineLayout> layouts = LayoutsOfSpace(job, space);
  std::vector<TrainingStrategy> units = UnitsOfSpace(job, space);
  const auto plans =
      std::ranges::stable_partition(units, [](const TrainingStrategy& s) {
        return s.recomputation != Recomputation::kPlan;
      });
  const SearchQuestion question{job, space, layouts, limit, count, clock};
  StrategySearch all =
      Sum(SearchEachUnit(job, question, {units.begin(), plans.begin()}));
  BestStrategies best(count);
  for (const RankedStrategy& ranked : all.best) best.Add(ranked);
  const StrategySearch planned_search = SearchPlans(
      {job, space, layouts, limit, count, best.Cutoff(), clock}, plans);
  for (const RankedStrategy& ranked : planned_search.best) best.Add(ranked);
  Add(planned_search, all);
  all.best = best.Take();
  for (const RankedStrategy& ranked : all.best) RequireLegal(job, ranked);
  return all;
}

}  // namespace acplan::costmodel
