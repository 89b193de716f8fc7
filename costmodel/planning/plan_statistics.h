#pragma once

#include <nlohmann/json.hpp>

#include "costmodel/execution/execution.h"
#include "costmodel/planning/strategy_plan.h"

namespace acplan::costmodel {

// The figures of a plan that fits, docs/file_formats.md, "Statistics of plans":
// samples/s, seconds of a batch by kind, bytes of the first stage by kind.
nlohmann::ordered_json PlanStatistics(const Execution& execution,
                                      const StrategyPlan& plan);

}  // namespace acplan::costmodel
