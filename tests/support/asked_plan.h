#pragma once

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/ask.h"

namespace acplan::test_support {

// Returns the plan that Ask makes within options.budget_bytes.
inline problems::Plan AskedPlan(const graph::Profile& profile,
                                const graph::ModuleTree& tree,
                                const problems::PlanOptions& options) {
  return problems::Ask({.profile = &profile, .tree = &tree, .options = options},
                       {.bytes = options.budget_bytes})
      .plan;
}

}  // namespace acplan::test_support
