#pragma once

#include <optional>
#include <span>
#include <string>

#include "cli/terminal/terminal.h"
#include "costmodel/planning/strategy_plan.h"
#include "costmodel/search/staged_search.h"

namespace acplan::cli {

// A strategy that is shown; with its plan where recomputation is planned.
struct RankedStrategy {
  costmodel::Candidate candidate;
  std::optional<costmodel::StrategyPlan> plan;
};

// Tells what was searched, what both stages found, and what is proven.
std::string SearchSummary(const costmodel::SearchProblem& problem,
                          const costmodel::StagedOutcome& found);

// The strategies of a search by rank, a row each.
std::string RankTable(std::span<const RankedStrategy> strategies,
                      const Terminal& terminal);

// The strategies of a front by budget, a row each.
std::string FrontTable(const costmodel::RateFront& front,
                       const Terminal& terminal);

}  // namespace acplan::cli
