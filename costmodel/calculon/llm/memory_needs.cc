#include "costmodel/calculon/llm/memory_needs.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

// Returns the number of microbatches whose activations a processor holds. With interleaving
// it holds those of later chunks, too.
double MicrobatchesInFlight(const Schedule& schedule) {
  const double in_flight =
      std::min(schedule.microbatches, schedule.pipeline_par);
  if (schedule.chunks == 1) return in_flight;
  return in_flight * (1 + (schedule.pipeline_par - 1) /
                              (schedule.chunks * schedule.pipeline_par));
}

void AddGradients(MemoryNeeds& needs, double blocks, const BlockCosts& block) {
  needs.activation_grads = block.act_grad_space;
  // The gradients of a block to which nothing is being added at the moment.
  const double others = block.weight_grad_space;
  needs.weight_grads = {
      block.weight_grad_space_unsharded + others * (blocks - 1),
      block.weight_grad_space_unsharded + others};
  needs.optimizer = {block.optimizer_space * blocks, block.optimizer_space * 2};
}

// Bytes in the second tier if their kind is offloaded.
struct OffloadedBytes {
  double activations = 0;
  double gradients = 0;
};

void AddTiers(MemoryNeeds& needs, const Execution& execution,
              const OffloadedBytes& offloaded) {
  needs.tier1 =
      execution.weight_offload ? needs.weights.resident : needs.weights.all;
  if (execution.weight_offload) needs.tier2 = needs.weights.all;
  if (execution.activations_offload) {
    needs.tier1 += needs.activations.resident;
    if (needs.checkpoints.all > 0) needs.tier1 += needs.checkpoints.resident;
    needs.tier2 += offloaded.activations;
  } else {
    needs.tier1 += needs.activations.all;
    needs.tier1 += needs.checkpoints.all;
  }
  if (execution.optimizer_offload) {
    needs.tier1 += needs.weight_grads.resident;
    needs.tier1 += needs.optimizer.resident;
    needs.tier2 += offloaded.gradients;
    needs.tier2 += needs.optimizer.all;
  } else {
    needs.tier1 += needs.weight_grads.all + needs.optimizer.all;
  }
  needs.tier1 += needs.activation_grads;
}

}  // namespace

MemoryNeeds ComputeMemoryNeeds(const Execution& execution,
                               const Schedule& schedule,
                               const BlockCosts& block) {
  MemoryNeeds needs;
  needs.weights = {block.weight_space * schedule.blocks,
                   block.weight_space * 2};
  const bool is_full = execution.activation_recompute == Recompute::kFull;
  needs.activations = {block.act_working_space,
                       is_full
                           ? block.act_working_space
                           : block.act_working_space + block.act_storage_space};
  if (execution.training) {
    const double in_flight = MicrobatchesInFlight(schedule);
    if (is_full) {
      needs.checkpoints = {schedule.blocks * block.checkpoint_size * in_flight,
                           block.checkpoint_size * 2};
    } else {
      needs.activations.all =
          block.act_working_space +
          block.act_storage_space * (schedule.blocks * in_flight - 1);
    }
    AddGradients(needs, schedule.blocks, block);
  }
  AddTiers(
      needs, execution,
      {.activations = is_full ? needs.checkpoints.all : needs.activations.all,
       .gradients = block.weight_grad_space * schedule.blocks});
  return needs;
}

}  // namespace acplan::costmodel
