#pragma once

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Forward and backward of a step without recomputation, summed over the roots.
struct StepTime {
  double forward_ms = 0;
  double backward_ms = 0;
};
StepTime ComputeStepTime(const graph::Profile& profile,
                         const graph::ModuleTree& tree);

// The model without checkpointing and without sharding, whatever
// options.world_size: under kTorch PyTorch's get_peak_memory_runtime_baseline
// (the largest P + TG + AG + TA; the root's forward plus backward, several
// roots added up), under kSnapshot the largest measured total, under
// kTrace the peak of the simulated step.
PlanBaseline ComputeBaseline(const graph::Profile& profile,
                             const graph::ModuleTree& tree,
                             MemoryOptions options,
                             const graph::Trace* trace = nullptr);

}  // namespace acplan::problems
