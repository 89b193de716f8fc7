#include "costmodel/planning/fixed_policies.h"

#include <limits>

#include "costmodel/llm/evaluation.h"

namespace acplan::costmodel {
namespace {

double InTier1(const StateSize& size, bool is_offloaded) {
  return is_offloaded ? size.resident : size.all;
}

}  // namespace

MemoryParts PartsOf(const Execution& execution, const MemoryNeeds& needs) {
  const double checkpoints =
      needs.checkpoints.all > 0
          ? InTier1(needs.checkpoints, execution.activations_offload)
          : 0;
  return {
      .weights = InTier1(needs.weights, execution.weight_offload),
      .activations = InTier1(needs.activations, execution.activations_offload) +
                     checkpoints,
      .activation_gradients = needs.activation_grads,
      .weight_gradients =
          InTier1(needs.weight_grads, execution.optimizer_offload),
      .optimizer = InTier1(needs.optimizer, execution.optimizer_offload),
      .tier1 = needs.tier1,
      .tier2 = needs.tier2};
}

bool IsAllowed(const Execution& execution, Recompute recompute,
               bool seq_par_ag_redo) {
  return !seq_par_ag_redo ||
         (execution.IsSequenceParallel() && recompute != Recompute::kFull);
}

std::vector<FixedPolicy> EvaluateFixedPolicies(const Model& model,
                                               const System& system,
                                               const Execution& execution,
                                               const Corrections& corrections) {
  System roomy = system;
  roomy.mem1.capacity = std::numeric_limits<double>::infinity();
  roomy.mem2.capacity = std::numeric_limits<double>::infinity();
  std::vector<FixedPolicy> policies;
  for (const Recompute recompute :
       {Recompute::kNone, Recompute::kAttentionOnly, Recompute::kFull}) {
    for (const bool redo : {false, true}) {
      if (!IsAllowed(execution, recompute, redo)) continue;
      FixedPolicy& policy = policies.emplace_back(
          FixedPolicy{.recompute = recompute, .seq_par_ag_redo = redo});
      const Execution fixed = WithPolicy(execution, policy);
      const Evaluation evaluation = Evaluate(model, roomy, fixed, corrections);
      policy.memory = PartsOf(fixed, evaluation.memory);
      policy.fits = CheckMemory(system, evaluation.memory).Fits();
      policy.total_time = evaluation.times.total;
    }
  }
  return policies;
}

Execution WithPolicy(const Execution& execution, const FixedPolicy& policy) {
  Execution fixed = execution;
  fixed.activation_recompute = policy.recompute;
  fixed.seq_par_ag_redo = policy.seq_par_ag_redo;
  return fixed;
}

std::optional<FixedPolicy> FastestThatFits(
    const std::vector<FixedPolicy>& policies) {
  std::optional<FixedPolicy> best;
  for (const FixedPolicy& policy : policies) {
    if (!policy.fits) continue;
    if (!best || policy.total_time < best->total_time) best = policy;
  }
  return best;
}

}  // namespace acplan::costmodel
