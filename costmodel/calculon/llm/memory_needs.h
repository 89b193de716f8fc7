#pragma once

#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/llm/block_costs.h"
#include "costmodel/calculon/llm/schedule.h"

namespace acplan::costmodel {

// Bytes of a kind of state: of all blocks of a processor, and of the part that stays in the
// first tier of memory if the rest is offloaded.
struct StateSize {
  double all = 0;
  double resident = 0;
};

// The bytes that the fullest processor of the pipeline holds.
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

// Computes the needs under the one-forward-one-backward schedule: as many microbatches are
// in flight as there are stages.
MemoryNeeds ComputeMemoryNeeds(const Execution& execution,
                               const Schedule& schedule,
                               const BlockCosts& block);

}  // namespace acplan::costmodel
