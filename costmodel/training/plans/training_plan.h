#pragma once

#include <array>
#include <span>
#include <vector>

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/plans/policy_choice.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/time/step_time.h"
#include "costmodel/training/time/unit_times.h"

namespace acplan::costmodel {

// A layer whose sets of policies are known; they hold for all layers of the same structure.
struct KnownStructure {
  LayerGraph graph = {};
  std::vector<PolicySets> sets = {};
};

// A kind of layer and its policies. `offer` refers to the other members of the same object,
// so a copy would refer to the original: move the object, or leave it in place.
struct PlannedLayer {
  LayerGraph graph = {};
  std::vector<LayerPolicy> policies = {};
  std::vector<size_t> gpu_hull = {};
  std::vector<size_t> host_hull = {};
  LayerOffer offer = {};
};

// Dense layers, then layers with experts; a kind that the model lacks has no policies. They
// depend on the job as UnitTimes do.
using PlannedLayers = std::array<PlannedLayer, 2>;
PlannedLayers LayersToPlan(
    const TrainingJob& job,
    std::span<const KnownStructure> known_structures = {});

// Layers of a stage that keep the same tensors of each microbatch.
struct LayerShare {
  bool is_moe = false;
  LayerPolicy policy = {};
  int64_t layers = 0;
};

struct PlannedStage {
  StageContent content = {};
  std::vector<LayerShare> shares = {};  // in ascending order of the bytes kept
  bool fits = false;                    // if false, it keeps the least
  bool is_optimal = true;               // proven
  double bound = 0;                     // no recomputation takes fewer seconds
  PassTime recomputation = {};          // for a microbatch
  double flops = 0;  // those that run again, for a microbatch on a rank
  StageKeeping keeping = {};
  RankMemory memory = {};
};

// The tensors that each stage keeps and the operations that it runs again.
struct TrainingPlan {
  // The graphs of dense layers and of layers with experts.
  std::array<LayerGraph, 2> graphs = {};
  std::vector<PlannedStage> stages = {};
  StepTime time = {};
  double bound = 0;  // no plan has fewer seconds per iteration

  bool Fits() const;
  bool IsOptimal() const;
  StepMemory Memory() const;
};

// Plans the recomputation of a job.
//
// Data: a job; policies of each kind of layer (layer_policies.h); for each stage its
//   layers, the microbatches in flight and the memory that remains of `budget`.
// Variables: a policy for each layer of each stage.
// Minimise the seconds of an iteration subject to the memory of each stage.
//
// The time of an iteration rises with the recomputation of each stage, whatever the others
// do, so each stage is minimised separately (policy_choice.h). `job.strategy.microbatch`
// must be set, and the implementation fused.
TrainingPlan PlanTraining(const TrainingJob& job, double budget);

// Returns the plan of choices that were made before, one for each stage.
TrainingPlan PlanOfChoices(const TrainingJob& job,
                           std::span<const PolicyChoice> choices);

// Returns the offers of the planned layers with the numbers of a stage's layers, and the
// room of a stage. Meant for searches.
std::array<LayerOffer, 2> OffersOfStage(const PlannedLayers& layers,
                                        const StageContent& stage);
StageRoom RoomOfStage(const TrainingJob& job, const StageContent& stage,
                      size_t index, double budget);

// Returns stage `index` with a choice of policies.
PlannedStage StageWithChoice(const TrainingJob& job,
                             const PlannedLayers& layers,
                             const StageContent& stage, size_t index,
                             const PolicyChoice& choice);

// Returns the time of an iteration with these stages, or a bound on it.
StepTime TimeOfPlan(const TrainingJob& job, const UnitTimes& units,
                    std::span<const PlannedStage> stages);
StepTime BoundOfPlan(const TrainingJob& job, const UnitTimes& units,
                     std::span<const PlannedStage> stages);

}  // namespace acplan::costmodel
