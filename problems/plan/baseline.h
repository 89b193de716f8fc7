#pragma once

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// The run-times of forward and backward of a step without recomputation, summed
// over the roots.
struct StepTime {
  double forward_ms = 0;
  double backward_ms = 0;
};
StepTime ComputeStepTime(const graph::Profile& profile,
                         const graph::ModuleTree& tree);

// Computes the baseline: the model without checkpointing and without sharding,
// for every options.world_size. Under kTorch this is PyTorch's
// get_peak_memory_runtime_baseline (the largest P + TG + AG + TA; the root's
// forward plus backward, summed over several roots), under kSnapshot the
// largest measured total, under kTrace the peak of the simulated step.
PlanBaseline ComputeBaseline(const graph::Profile& profile,
                             const graph::ModuleTree& tree,
                             MemoryOptions options,
                             const graph::Trace* trace = nullptr);

}  // namespace acplan::problems
