#include "costmodel/training/time/unit_times.h"

#include <vector>

#include "costmodel/training/layer/rank_parameters.h"
#include "costmodel/training/layer/tower_operations.h"

namespace acplan::costmodel {
namespace {

UnitTime TimeOfUnit(const std::vector<LayerOperation>& operations,
                    const TrainingJob& job, bool may_run_again) {
  UnitTime time;
  for (const LayerOperation& operation : operations) {
    const PassTime forward = ForwardTime(operation, job);
    const double recomputed_share =
        may_run_again ? RecomputedShare(operation, job.strategy) : 0;
    time.forward += forward;
    time.backward += BackwardTime(operation, job);
    time.recomputation += forward * recomputed_share;
  }
  return time;
}

UnitTime TimeOfLayer(const TrainingJob& job, bool is_moe) {
  const ModelShape& shape = job.shape;
  UnitTime time = TimeOfUnit(
      LayerOperations(shape, job.strategy, {.is_moe = is_moe}), job, true);
  if (shape.sliding_window == 0) return time;
  const double full = shape.FullShare();
  const UnitTime windowed =
      TimeOfUnit(LayerOperations(shape, job.strategy,
                                 {.is_moe = is_moe, .is_windowed = true}),
                 job, true);
  time = time * full;
  time += windowed * (1 - full);
  return time;
}

// Returns a frozen part's time: nothing before it is trained, so that it has no backward pass.
UnitTime Frozen(UnitTime time) { return {.forward = time.forward}; }

UnitTime TimeOfTowers(const TrainingJob& job) {
  UnitTime sum;
  if (!RunsTowers(job)) return sum;
  for (const Tower& tower : job.shape.towers) {
    const TrainingJob layers = JobOfTower(job, tower);
    UnitTime stack =
        TimeOfLayer(layers, false) * static_cast<double>(tower.stack->layers);
    stack += TimeOfUnit(PatchOperations(job, tower), layers, false);
    const UnitTime projector =
        TimeOfUnit(ProjectorOperations(job, tower), layers, false);
    sum += TrainsTowers(job.strategy) ? stack : Frozen(stack);
    sum += TrainsProjectors(job.strategy) ? projector : Frozen(projector);
  }
  return sum;
}

}  // namespace

UnitKey UnitKeyOf(const TrainingStrategy& strategy) {
  return {strategy.fsdp > 1,
          strategy.IsLowPrecision() ? strategy.Microbatches() : 0};
}

const UnitTimes& KnownUnitTimes::TimesOf(const TrainingJob& job) {
  const UnitKey key = UnitKeyOf(job.strategy);
  const auto entry = times_.find(key);
  if (entry != times_.end()) return entry->second;
  return times_.emplace(key, TimesOfUnits(job)).first->second;
}

UnitTimes TimesOfUnits(const TrainingJob& job) {
  const ModelShape& shape = job.shape;
  UnitTimes times;
  if (!shape.IsMoe() || shape.dense_layers > 0) {
    times.dense = TimeOfLayer(job, false);
  }
  if (shape.IsMoe()) times.moe = TimeOfLayer(job, true);
  times.embedding =
      TimeOfUnit(EmbeddingOperations(shape, job.strategy), job, false);
  times.logits = TimeOfUnit(LogitsOperations(shape, job.strategy), job, false);
  times.towers = TimeOfTowers(job);
  return times;
}

}  // namespace acplan::costmodel
