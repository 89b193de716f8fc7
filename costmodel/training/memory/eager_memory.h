#pragma once

#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// What the modules of Hugging Face transformers save for the backward pass when
// PyTorch runs them operator by operator in bf16, bytes: of one layer, and of all
// that is no layer (embedding, last norm, logits, loss in float32). Of a whole
// model on one rank.
double EagerLayerBytes(const ModelShape& shape,
                       const TrainingStrategy& strategy, bool is_moe);
double EagerEndBytes(const ModelShape& shape, const TrainingStrategy& strategy);

// What the loss holds beside it when its gradient is made: two tensors of logits in
// float32.
double EagerLossBytes(const ModelShape& shape,
                      const TrainingStrategy& strategy);

// The activations of a step at its peak, in the parts of RankMemory that are no
// states. Tensor, pipeline, context and expert parallelism must be 1.
RankMemory EagerActivations(const TrainingJob& job);

}  // namespace acplan::costmodel
