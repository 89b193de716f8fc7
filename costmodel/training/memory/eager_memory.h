#pragma once

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// Returns the bytes that the modules of Hugging Face transformers save for the backward
// pass if PyTorch runs them operator by operator in bf16: those of one layer, and those of
// everything else (embedding, last norm, logits, loss in float32). The whole model is on
// one rank.
double EagerLayerBytes(const ModelShape& shape,
                       const TrainingStrategy& strategy, bool is_moe);
double EagerEndBytes(const ModelShape& shape, const TrainingStrategy& strategy);

// Returns the additional bytes that the loss holds when its gradient is made: two tensors
// of logits in float32.
double EagerLossBytes(const ModelShape& shape,
                      const TrainingStrategy& strategy);

// Returns the activations of a step at its peak, in the members of RankMemory other than
// states. Tensor, pipeline, context and expert parallelism must be 1.
RankMemory EagerActivations(const TrainingJob& job);

}  // namespace acplan::costmodel
