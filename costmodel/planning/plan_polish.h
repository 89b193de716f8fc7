#pragma once

#include "costmodel/planning/plan_input.h"
#include "costmodel/planning/strategy_plan.h"

namespace acplan::costmodel {

// Returns the plan, or a faster one that differs in its first stage. What hides
// the communication of gradients comes in jumps, which no linear cost sees: this
// climbs from the plan, and from the best policy for all blocks, by giving one
// block, or all that share a policy, another one.
StrategyPlan Polished(const PlanInput& input, const StrategyPlan& plan);

}  // namespace acplan::costmodel
