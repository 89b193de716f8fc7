#pragma once

#include <cstdint>

#include "costmodel/training/strategy/training_job.h"
#include "graph/profile/profile.h"

namespace acplan::costmodel {

// Returns the costs of a rank of stage `stage` without recomputation as a profile for the
// planner. The whole strategy counts, except its recomputation.
//
// The module Transformer, all that the rank has, holds layers.0 and so on, in the order of
// the model, and each layer holds its operations as leaves. The operators of a layer are
// the operations that make a tensor which the backward pass reads; saving one takes that
// tensor's bytes. An operation that makes no such tensor runs again with the first one that
// reads it, and its time is included there. The time of an operation that none of them
// reads (a layer's last product) is in an operator that costs no byte to save.
//
// Times are those of an iteration: all microbatches and the exposed part of communication,
// without launches, bubble, data parallelism and optimizer. Bytes of activations are those
// of all microbatches in flight (pipeline_schedule.h). Records are the moments of a
// microbatch's backward pass. The record of Transformer is the peak, which is
// PredictStepMemory's without recomputation: all that the stage keeps, with logits and
// working space.
//
// The backward pass begins with the last layer, which then is whole for one microbatch,
// whatever it kept: units there discard one microbatch less. So a plan of the profile needs
// as much memory as PlanTraining says. If the stage has logits that are smaller than the
// tensors that a layer recomputes, it needs at most those logits more.
//
// The microbatch is set. Names of model and device are left empty. Throws InputError if
// activations are offloaded, if the implementation is not fused, if the stage has no layers
// or more than 4096, or if a number is too large for a profile.
graph::Profile StageProfile(const TrainingJob& job, size_t stage);

}  // namespace acplan::costmodel
