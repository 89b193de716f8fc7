#pragma once

#include <string>
#include <vector>

#include "cli/input/llm_input.h"
#include "cli/terminal/terminal.h"
#include "costmodel/execution/corrections.h"
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

// Reads a question to plan: a strategy that trains, named as above, with the
// verdict on all but its memory. `budget`: of the first tier; empty: that of the
// plan or result, or the system's. Throws InputError.
LlmResult ReadPlanQuestion(const StrategyFlags& flags,
                           const costmodel::Corrections& corrections,
                           const std::string& budget, const Terminal& terminal);

// The help on EXECUTION of a command that calls ReadPlanQuestion.
inline constexpr const char* kPlannedExecutionHelp =
    "strategy (.json or .json.gz): an execution, a plan of llm-plan, or one of "
    "the results of llm-optimal-execution and llm-search, FILE:RANK or FILE "
    "for "
    "the best";

}  // namespace acplan::cli
