#pragma once

#include "costmodel/execution/corrections.h"
#include "costmodel/execution/execution.h"
#include "costmodel/llm/block_costs.h"
#include "costmodel/llm/schedule.h"

namespace acplan::costmodel {

// Bytes of a kind of state: of all blocks of a processor, and what stays in the
// first tier of memory where the rest is offloaded.
struct StateSize {
  double all = 0;
  double resident = 0;
};

// Bytes that the fullest processor of the pipeline holds.
struct MemoryNeeds {
  StateSize weights;
  StateSize activations;
  StateSize checkpoints;
  StateSize weight_grads;
  StateSize optimizer;
  double activation_grads = 0;
  double tier1 = 0;
  double tier2 = 0;
};

// One-forward-one-backward: as many microbatches are in flight as there are
// stages.
MemoryNeeds ComputeMemoryNeeds(const Execution& execution,
                               const Schedule& schedule,
                               const BlockCosts& block,
                               const Corrections& corrections);

// Activations that the blocks of a stage keep for the backward pass.
struct KeptActivations {
  double in_flight = 1;  // microbatches
  double bytes = 0;      // of a microbatch, all blocks of the stage
  double most = 0;       // of those, the block that keeps most
};

// As above for a stage that trains `blocks` blocks, whatever recomputation
// `execution` names: a block in its backward pass has all of its activations,
// the others what they keep; the one that keeps most goes back first. Where
// activations are offloaded, what the others keep is in the second tier.
MemoryNeeds ComputeStageMemoryNeeds(const Execution& execution, double blocks,
                                    const BlockCosts& block,
                                    const KeptActivations& kept,
                                    const Corrections& corrections);

}  // namespace acplan::costmodel
