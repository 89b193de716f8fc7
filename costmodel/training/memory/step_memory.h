#pragma once

#include <algorithm>
#include <vector>

#include "costmodel/training/layer/rank_parameters.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// The bytes that a rank of a stage holds at its peak.
struct RankMemory {
  double parameters = 0;  // in the 16 bits of products
  double gradients = 0;
  double optimizer = 0;    // master weights and two moments
  double activations = 0;  // kept for the backward passes in flight
  double logits = 0;       // those of the loss, on the stage that has them
  double working = 0;      // of the running layer: gathered, recomputed
  double libraries = 0;    // workspaces of cuBLAS
  // The states that an update has at a time if all wait on the host: when it runs,
  // activations, logits and working memory are gone.
  double update = 0;
  double host = 0;  // the optimizer's states in the host's memory

  // Returns what is there all the time.
  double Resting() const {
    return parameters + gradients + optimizer + libraries;
  }
  // Returns the bytes by which an update has more than the passes.
  double OfUpdate() const {
    return std::max(0.0, update - activations - logits - working);
  }
  double Total() const {
    return parameters + gradients + optimizer + activations + logits + working +
           libraries + OfUpdate();
  }
};

struct StepMemory {
  std::vector<RankMemory> stages = {};
  // Returns the stage with the highest peak.
  const RankMemory& Worst() const;
};

// The bytes that a layer holds for a microbatch.
struct LayerMemory {
  double kept_bytes = 0;  // kept for the backward pass
  double whole = 0;       // all of it, without recomputation
};

// The bytes that the layers of a stage hold for a microbatch: kept for its backward pass,
// and recomputed during the backward pass of a layer.
struct StageKeeping {
  double kept_bytes = 0;
  double recomputed_bytes = 0;
};

// The memory of the layers of a model, recomputed and not. It depends on the strategy as
// UnitTimes does.
struct LayerMemories {
  LayerMemory dense = {};
  LayerMemory dense_again = {};
  LayerMemory moe = {};
  LayerMemory moe_again = {};
  StageKeeping towers = {};  // on the stage that has the embedding
};
LayerMemories MemoriesOfLayers(const TrainingJob& job);

// Returns the memory of stage `index`. It is meant for searches, and checks nothing.
RankMemory MemoryOfStage(const TrainingJob& job, const LayerMemories& layers,
                         const StageContent& stage, size_t index);

// Returns the bytes of the stage with the highest peak. Among equal stages that is the
// first one, which has most microbatches in flight. If a stage has more bytes than `limit`,
// the result is some number above it.
double MostBytesOf(const TrainingJob& job, const LayerMemories& layers,
                   const std::vector<StageKind>& kinds, double limit);

// Returns the memory of stage `index`, whose layers hold `keeping`.
RankMemory MemoryOfKeeping(const TrainingJob& job, const StageContent& stage,
                           size_t index, const StageKeeping& keeping);

// Returns the bytes that a stage keeps of a microbatch and sends to the host until its
// backward pass: the share of offloaded layers among its layers.
double OffloadedBytes(const TrainingJob& job, const LayerMemories& layers,
                      const StageContent& stage);

// Returns the elements that a rank updates if it trains so many parameters.
double UpdatedElements(const TrainingStrategy& strategy,
                       const RankParameters& trained);

// An update whose states wait on the host moves those of so many elements at a time: 64 MiB of
// parameters in 16 bits. If states are not sharded, a part has whole parameters, so the
// largest may be larger.
constexpr double kPartElements = 32 * 1024.0 * 1024;

// Returns the bytes that a layer keeps of a microbatch for its backward pass, recomputed or
// not.
double SavedBytesOfLayer(const TrainingJob& job, bool is_moe);

// Returns the memory of each stage of the pipeline. `job.strategy.microbatch` must be set.
StepMemory PredictStepMemory(const TrainingJob& job);

}  // namespace acplan::costmodel
