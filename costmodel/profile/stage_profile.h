#pragma once

#include <cstdint>

#include "costmodel/training/strategy/training_job.h"
#include "graph/profile/profile.h"

namespace acplan::costmodel {

// Returns the costs of a rank of stage `stage`, which recomputes nothing, as a
// profile for the planner. Of the strategy all counts but recomputation.
//
// Transformer (what the rank has) holds layers.0 and so on, in the order of the
// model, and these their operations as leaves. The operators of a layer are the
// operations that make a tensor which the backward pass reads; saving one takes that
// tensor's bytes. An operation that makes none runs again with the first one that
// reads it, and its time is in that one's; what none of them reads (a layer's last
// product) is in an operator that costs no byte to save.
//
// Times are of an iteration: all microbatches, communication as far as it is exposed,
// no launches, bubble, data parallelism or optimizer. Bytes of activations are of all
// microbatches in flight (pipeline_schedule.h). Records are the moments of a
// microbatch's backward pass. That of Transformer is the peak, PredictStepMemory's
// without recomputation: all that the stage keeps, with logits and working space.
//
// The last layer goes back first, and is whole then for one microbatch, whatever it
// kept: units there discard one microbatch less. So a plan of the profile needs
// what PlanTraining says of it; where the stage has logits that are less than a layer
// makes again, up to those more.
//
// The microbatch is set. Names of model and device are left empty. Throws InputError
// where activations are offloaded, the implementation is not fused, the stage has no
// layers or more than 4096, or a number is none that a profile may hold.
graph::Profile StageProfile(const TrainingJob& job, size_t stage);

}  // namespace acplan::costmodel
