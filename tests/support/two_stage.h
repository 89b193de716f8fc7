#pragma once

#include <cstdint>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::test_support {

// PyTorch's way to a plan with operators, in two stages: first which modules to
// discard, and how much of each (sac_milp, with the fits of the profile), then
// for each unit the operators to save within its ratio
// (get_optimal_checkpointing_policy_per_module). Both stages are solved to the
// optimum here, so a comparison measures the division itself.

enum class TwoStageOutcome {
  kFits,        // a plan within the budget
  kOverBudget,  // a plan, but its saved bytes do not fit
  kNoPolicy,    // a unit must save more than its ratio allows
  kNoRatios,    // the first stage has no plan
};

struct TwoStagePlan {
  TwoStageOutcome outcome = TwoStageOutcome::kNoRatios;
  // kFits, kOverBudget: units with operators. Peak and recomputation come from
  // ComputeEffect, not from the fits.
  problems::Plan plan;
};

TwoStagePlan PlanInTwoStages(const graph::Profile& profile,
                             const graph::ModuleTree& tree,
                             const problems::MemoryOptions& memory,
                             int64_t budget_bytes);

}  // namespace acplan::test_support
