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

// A layer whose sets of policies are known, for layers of the same structure.
struct KnownStructure {
  LayerGraph graph = {};
  std::vector<PolicySets> sets = {};
};

// A kind of layer and its policies. `offer` refers to the rest, and not to another
// one after a copy: move it, or leave it where it is.
struct PlannedLayer {
  LayerGraph graph = {};
  std::vector<LayerPolicy> policies = {};
  std::vector<size_t> gpu_hull = {};
  std::vector<size_t> host_hull = {};
  LayerOffer offer = {};
};

// Dense layers, then those with experts; without policies where the model has none.
// They depend on the job as UnitTimes do.
using PlannedLayers = std::array<PlannedLayer, 2>;
PlannedLayers LayersToPlan(const TrainingJob& job,
                           std::span<const KnownStructure> known = {});

// Layers of a stage that keep the same of each microbatch.
struct LayerShare {
  bool is_moe = false;
  LayerPolicy policy = {};
  int64_t layers = 0;
};

struct PlannedStage {
  StageContent content = {};
  std::vector<LayerShare> shares = {};  // what keeps least first
  bool fits = false;                    // else what keeps least
  bool is_optimal = true;               // proven
  double bound = 0;     // seconds that nothing runs again in less
  PassTime again = {};  // of a microbatch
  double flops = 0;     // that run again, of a microbatch on a rank
  StageKeeping keeping = {};
  RankMemory memory = {};
};

// What each stage keeps and runs again.
struct TrainingPlan {
  std::array<LayerGraph, 2> graphs = {};  // of dense layers, and with experts
  std::vector<PlannedStage> stages = {};
  StepTime time = {};
  double bound = 0;  // seconds of an iteration that no plan goes below

  bool Fits() const;
  bool IsOptimal() const;
  StepMemory Memory() const;
};

// Data: a job; policies of each kind of layer (layer_policies.h); of stage i its
//   layers, the microbatches in flight and the memory that is left of `budget`.
// Variables: a policy for each layer of each stage.
// Minimise the seconds of an iteration subject to the memory of each stage.
// An iteration rises with what each stage runs again, whatever the others do, so that
// each stage is least by itself (policy_choice.h).
// `job.strategy.microbatch` is set, and the implementation is fused.
TrainingPlan PlanTraining(const TrainingJob& job, double budget);

// The plan of choices that were made before, one for each stage.
TrainingPlan PlanOfChoices(const TrainingJob& job,
                           std::span<const PolicyChoice> choices);

// For searches. `offers`: of layers to plan, with a stage's layers.
std::array<LayerOffer, 2> OffersOfStage(const PlannedLayers& layers,
                                        const StageContent& stage);
StageRoom RoomOfStage(const TrainingJob& job, const StageContent& stage,
                      size_t index, double budget);

// What stage `index` makes of a choice of policies.
PlannedStage StageWithChoice(const TrainingJob& job,
                             const PlannedLayers& layers,
                             const StageContent& stage, size_t index,
                             const PolicyChoice& choice);

// The iteration with these stages, and the least that it could take.
StepTime TimeOfPlan(const TrainingJob& job, const UnitTimes& units,
                    std::span<const PlannedStage> stages);
StepTime BoundOfPlan(const TrainingJob& job, const UnitTimes& units,
                     std::span<const PlannedStage> stages);

}  // namespace acplan::costmodel
