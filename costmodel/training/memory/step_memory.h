#pragma once

#include <vector>

#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// What a rank of a stage holds when it holds most, bytes.
struct RankMemory {
  double parameters = 0;  // in the products' 16 bits
  double gradients = 0;
  double optimizer = 0;    // master weights and two moments
  double activations = 0;  // kept for the backward passes in flight
  double logits = 0;       // of the loss, on the stage that has them
  double working = 0;      // of the layer that runs: gathered, recomputed
  double libraries = 0;    // workspaces of cuBLAS

  double Total() const {
    return parameters + gradients + optimizer + activations + logits + working +
           libraries;
  }
};

struct StepMemory {
  std::vector<RankMemory> stages = {};
  // The stage that holds most.
  const RankMemory& Worst() const;
};

// What a layer holds of a microbatch, bytes.
struct LayerMemory {
  double kept = 0;   // for the backward pass
  double whole = 0;  // without recomputation
};

// Of the layers of a model, recomputed and not; depends on the strategy as
// UnitTimes does.
struct LayerMemories {
  LayerMemory dense = {};
  LayerMemory dense_again = {};
  LayerMemory moe = {};
  LayerMemory moe_again = {};
};
LayerMemories MemoriesOfLayers(const TrainingJob& job);

// The memory of stage `index`. For searches; checks nothing.
RankMemory MemoryOfStage(const TrainingJob& job, const LayerMemories& layers,
                         const StageContent& stage, size_t index);

// Of the stage that holds most. Of stages that are alike that is the first, which has
// most microbatches in flight.
double MostBytesOf(const TrainingJob& job, const LayerMemories& layers,
                   const std::vector<StageKind>& kinds);

// What the layers of a stage hold of a microbatch, bytes: kept for its backward
// pass, and made again while a layer goes back.
struct StageKeeping {
  double kept = 0;
  double again = 0;
};
RankMemory MemoryOfKeeping(const TrainingJob& job, const StageContent& stage,
                           size_t index, const StageKeeping& keeping);

// What a stage keeps of a microbatch and sends to the host until its backward pass:
// the share that offloaded layers are of its layers.
double OffloadedBytes(const TrainingJob& job, const LayerMemories& layers,
                      const StageContent& stage);

// What a layer keeps of a microbatch for its backward pass, recomputed or not.
double SavedBytesOfLayer(const TrainingJob& job, bool is_moe);

// The memory of each stage of the pipeline. `job.strategy.microbatch` must be set.
StepMemory PredictStepMemory(const TrainingJob& job);

}  // namespace acplan::costmodel
