#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "cli/training/train_input.h"
#include "costmodel/training/search/strategy_search.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// A question about strategies that a search answers: the job that they share,
// and the space of strategies. If a degree is given, it is the only one that is
// tried.
struct StrategyQuestion {
  costmodel::TrainingJob job;
  costmodel::StrategySpace space;
};

// Returns the question of some settings. Throws InputError if settings say
// something that a search does not vary.
StrategyQuestion AskOfStrategies(const costmodel::ModelShape& shape,
                                 const costmodel::StrategySettings& settings,
                                 const costmodel::TrainingSystems& systems);

// Returns the report of a strategy that a search found.
costmodel::TrainingReport ReportOfRanked(
    const costmodel::TrainingJob& job, const costmodel::RankedStrategy& ranked,
    const costmodel::MemoryLimit& limit);

// The figures of such a report that can be computed without making the plan
// again.
struct StrategyRates {
  double tokens = 0;       // of a GPU in a second
  double utilisation = 0;  // of the model's operations
};
StrategyRates RatesOf(const costmodel::TrainingJob& job,
                      const costmodel::RankedStrategy& ranked);

// Returns the columns of a table of strategies: degrees, recomputation, time
// or, if requested, GPU-hours or cost; speed and memory.
std::vector<Table::Align> StrategyColumns();
std::vector<std::string> StrategyHeadings(const TrainQuestion& question);
std::vector<std::string> StrategyCells(const costmodel::TrainingJob& job,
                                       const costmodel::RankedStrategy& ranked,
                                       const TrainQuestion& question);
// Returns the meaning of those headings, in a line.
std::string StrategyLegend(const TrainQuestion& question);

// Returns the cause of the search's end: "--time-limit", or the user.
std::string EndOfSearch();

// Returns whether the search proved its answer; if not, why, and how far the
// answer may be from the best one. `is_robust`: worst cases were compared.
std::string ProofText(const costmodel::StrategySearch& search,
                      bool is_robust = false);

}  // namespace acplan::cli
