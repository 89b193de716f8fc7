#pragma once

#include <optional>

#include "graph/profile/profile.h"
#include "graph/trace/unit_refusal.h"

namespace acplan::graph {

// Returns the operator statistics of a module that is called: `sac` in Aggregate's
// contract, which says when there are none.
std::optional<SacStatistics> OperatorStatistics(const CallFacts& facts,
                                                ModuleId module);

}  // namespace acplan::graph
