#pragma once

#include <optional>
#include <vector>

#include "costmodel/application/model.h"
#include "costmodel/execution/corrections.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/llm/memory_needs.h"

namespace acplan::costmodel {

// Bytes of a processor. The kinds are what is in the first tier, offloaded or
// not, and add up to tier1; checkpoints are activations.
struct MemoryParts {
  double weights = 0;
  double activations = 0;
  double activation_gradients = 0;
  double weight_gradients = 0;
  double optimizer = 0;
  double tier1 = 0;
  double tier2 = 0;

  bool operator==(const MemoryParts&) const = default;
};

MemoryParts PartsOf(const Execution& execution, const MemoryNeeds& needs);

// A policy that the keys of an execution name, the same for all blocks.
struct FixedPolicy {
  Recompute recompute = Recompute::kNone;
  bool seq_par_ag_redo = false;
  MemoryParts memory = {};  // of the fullest processor
  bool fits = false;
  double total_time = 0;  // of a batch, as if it fit

  bool operator==(const FixedPolicy&) const = default;
};

// Whether an execution may have the policy: seq_par_ag_redo only under sequence
// parallelism, and not beside full recomputation.
bool IsAllowed(const Execution& execution, Recompute recompute,
               bool seq_par_ag_redo);

// All that a training execution that passed CheckFit may have, what recomputes
// least first. Its own does not matter.
std::vector<FixedPolicy> EvaluateFixedPolicies(const Model& model,
                                               const System& system,
                                               const Execution& execution,
                                               const Corrections& corrections);

// The execution with the policy in place of its own.
Execution WithPolicy(const Execution& execution, const FixedPolicy& policy);

// The fastest that fits, the first of equals.
std::optional<FixedPolicy> FastestThatFits(
    const std::vector<FixedPolicy>& policies);

}  // namespace acplan::costmodel
