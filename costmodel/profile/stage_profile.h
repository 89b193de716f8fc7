#pragma once

#include <cstdint>

#include "costmodel/application/model.h"
#include "costmodel/execution/corrections.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "graph/profile/profile.h"

namespace acplan::costmodel {

// Returns the costs of a stage that recomputes nothing, as a profile for the
// planner. Of the execution all counts but activation_recompute and
// seq_par_ag_redo.
//
// Transformer (the model on a processor) holds `stage`, that `blocks.0` and so
// on, each of them `attention` and `mlp`; `attention` has `core`, the products
// with queries, keys and values and what is between them. The leaves are the
// layers of BuildBlock in their order, and the operators of the modules around
// them.
//
// Blocks and microbatches in flight are those of the stage (llm/schedule.h);
// times are of a batch: all microbatches, communication as far as it is
// exposed, no bubble, sends, offloading, data parallelism or optimizer. Bytes
// of activations are of all microbatches in flight. What an operator makes is
// its output, and the mask of a dropout; the result of a module costs nothing to
// save, as it is kept anyway.
//
// A record is the moment of a microbatch's backward pass through the module.
// That of the stage is the peak: all that the stage keeps, with act_working_space
// for the last block and the microbatch that goes back through it, which is
// whole whatever was recomputed. So units of the last block discard one
// microbatch less. Records inside blocks hold no more than any plan leaves.
//
// Without units the peak of stage 0 is what ComputeMemoryNeeds says of the first
// tier, but for the rounding of bytes and where chunks are interleaved and m v <
// (v + 1) p - 1, for which the latter counts more than m microbatches.
//
// The execution trains and has passed CheckFit; the stage has blocks. Names of
// model and device are left empty. Throws InputError where the stage has more
// than 4096 blocks, or a number is none that a profile may hold.
graph::Profile StageProfile(const Model& model, const System& system,
                            const Execution& execution,
                            const Corrections& corrections, int64_t stage);

}  // namespace acplan::costmodel
