#include "costmodel/llm/memory_needs.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

// Microbatches whose activations a processor holds. Interleaving holds those of
// later chunks too.
double MicrobatchesInFlight(const Schedule& schedule) {
  const double in_flight =
      std::min(schedule.microbatches, schedule.pipeline_par);
  if (schedule.chunks == 1) return in_flight;
  return in_flight * (1 + (schedule.pipeline_par - 1) /
                              (schedule.chunks * schedule.pipeline_par));
}

// Returns the bytes of a block's gradients while they are not being added to.
double OtherGradients(const BlockCosts& block, const Corrections& corrections) {
  return corrections.full_precision_gradients
             ? block.weight_grad_space_unsharded
             : block.weight_grad_space;
}

void AddGradients(MemoryNeeds& needs, double blocks, const BlockCosts& block,
                  const Corrections& corrections) {
  needs.activation_grads = block.act_grad_space;
  const double others = OtherGradients(block, corrections);
  needs.weight_grads = {
      block.weight_grad_space_unsharded + others * (blocks - 1),
      block.weight_grad_space_unsharded + others};
  needs.optimizer = {block.optimizer_space * blocks, block.optimizer_space * 2};
}

// Bytes in the second tier where their kind is offloaded.
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
                               const BlockCosts& block,
                               const Corrections& corrections) {
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
    AddGradients(needs, schedule.blocks, block, corrections);
  }
  AddTiers(
      needs, execution,
      {.activations = is_full ? needs.checkpoints.all : needs.activations.all,
       .gradients = OtherGradients(block, corrections) * schedule.blocks});
  return needs;
}

MemoryNeeds ComputeStageMemoryNeeds(const Execution& execution, double blocks,
                                    const BlockCosts& block,
                                    const KeptActivations& kept,
                                    const Corrections& corrections) {
  MemoryNeeds needs;
  needs.weights = {block.weight_space * blocks, block.weight_space * 2};
  const double others = kept.in_flight * kept.bytes - kept.most;
  needs.activations = {block.act_working_space + others,
                       block.act_working_space + kept.most};
  AddGradients(needs, blocks, block, corrections);
  AddTiers(needs, execution,
           {.activations = others,
            .gradients = OtherGradients(block, corrections) * blocks});
  return needs;
}

}  // namespace acplan::costmodel
