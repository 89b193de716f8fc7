#pragma once

#include <string>
#include <vector>

#include "costmodel/results/strategy_comparison.h"

namespace acplan::cli {

// "best.json:2" -> "best.json".
std::string StrategyFile(const std::string& argument);

// The strategy that each argument names, in order: an execution, a plan of
// llm-plan, or one of the results of llm-optimal-execution or llm-search,
// FILE:RANK or FILE (rank 0), of which the execution alone is read, and of plans
// the budget. Called by the file's stem, and by the rank where
// there is one; by the arguments where two stems are the same. Throws
// InputError.
std::vector<costmodel::NamedExecution> ReadStrategies(
    const std::vector<std::string>& arguments);

}  // namespace acplan::cli
