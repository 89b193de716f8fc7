#pragma once

#include <cstdint>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/model/memory_model.h"
#include "problems/plan/plan.h"

namespace acplan::test_support {

// PyTorch's way to a plan with operators, in two stages: which modules and how
// much of each to discard (sac_milp, with the fits of the profile), then for
// each unit the operators to save within what its ratio leaves
// (get_optimal_checkpointing_policy_per_module). Both stages are solved to the
// optimum here, so what is left to be compared with is the division itself.

enum class TwoStageOutcome {
  kFits,        // a plan within the budget
  kOverBudget,  // a plan, but what it saves does not fit
  kNoPolicy,    // a unit must save more than its ratio leaves
  kNoRatios,    // the first stage has no plan
};

struct TwoStagePlan {
  TwoStageOutcome outcome = TwoStageOutcome::kNoRatios;
  // kFits, kOverBudget: units with operators. Peak and recomputation are what
  // ComputeEffect says of them, not what the fits promised.
  problems::Plan plan;
};

TwoStagePlan PlanInTwoStages(const graph::Profile& profile,
                             const graph::ModuleTree& tree,
                             const problems::MemoryOptions& memory,
                             int64_t budget_bytes);

}  // namespace acplan::test_support
