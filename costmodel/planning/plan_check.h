#pragma once

#include <optional>
#include <string>

#include "costmodel/application/model.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/planning/strategy_plan.h"

namespace acplan::costmodel {

// Returns what is wrong with a plan of PlanStrategy, in a line; nullopt where
// the plan holds. The check derives anew, from the layers of a block and a walk
// of the schedule: the blocks of each stage, the microbatches in flight, what
// each policy keeps and runs again, the memory of both tiers, the seconds of
// each stage and those of a batch, to a relative 1e-9. It does not prove that
// no plan is faster.
std::optional<std::string> FindPlanError(const Model& model,
                                         const System& system,
                                         const Execution& execution,
                                         const StrategyPlan& plan);

}  // namespace acplan::costmodel
