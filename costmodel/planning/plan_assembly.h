#pragma once

#include <span>

#include "costmodel/planning/block_policies.h"
#include "costmodel/planning/plan_input.h"
#include "costmodel/planning/stage_policies.h"
#include "costmodel/planning/strategy_plan.h"

namespace acplan::costmodel {

// The first stage's policies, of those that it had to choose from.
struct FirstStage {
  ChosenPolicies chosen;
  std::span<const BlockPolicy> policies;
};

// Puts the stages together, with their memory and times.
StrategyPlan Assemble(const PlanInput& input, const FirstStage& first,
                      const LaterStages& later);

// Returns the plan that keeps least, whether it fits or not.
StrategyPlan SmallestPlan(const PlanInput& input);

// Gives the plan's first stage other policies.
StrategyPlan WithFirstStage(const PlanInput& input, StrategyPlan plan,
                            std::vector<PolicyShare> policies);

}  // namespace acplan::costmodel
