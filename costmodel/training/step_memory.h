#pragma once

#include <vector>

#include "costmodel/training/training_job.h"

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

// What a layer keeps of a microbatch for its backward pass, recomputed or not.
double SavedBytesOfLayer(const TrainingJob& job, bool is_moe);

// The memory of each stage of the pipeline. `job.strategy.microbatch` must be set.
StepMemory PredictStepMemory(const TrainingJob& job);

}  // namespace acplan::costmodel
