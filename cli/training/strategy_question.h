#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/terminal/text.h"
#include "cli/training/train_input.h"
#include "costmodel/training/search/strategy_search.h"
#include "costmodel/training/training_report.h"

namespace acplan::cli {

// A question about strategies that a search answers: what all of them share, and
// what is searched. A degree that is said is the only one that is tried.
struct StrategyQuestion {
  costmodel::TrainingJob job;
  costmodel::StrategySpace space;
};

// Throws InputError where settings say what a search does not vary.
StrategyQuestion AskOfStrategies(const costmodel::ModelShape& shape,
                                 const costmodel::StrategySettings& settings,
                                 const costmodel::TrainingSystems& systems);

// The report of what a search found.
costmodel::TrainingReport ReportOfRanked(
    const costmodel::TrainingJob& job, const costmodel::RankedStrategy& ranked,
    double budget);

// Of such a report, what does not need the plan to be made once more.
struct StrategyRates {
  double tokens = 0;       // of a GPU in a second
  double utilisation = 0;  // of the model's operations
};
StrategyRates RatesOf(const costmodel::TrainingJob& job,
                      const costmodel::RankedStrategy& ranked);

// The columns of a table of strategies: degrees, recomputation, time or, where they
// are asked for, GPU-hours or cost; speed and memory.
std::vector<Table::Align> StrategyColumns();
std::vector<std::string> StrategyHeadings(const TrainQuestion& question);
std::vector<std::string> StrategyCells(const costmodel::TrainingJob& job,
                                       const costmodel::RankedStrategy& ranked,
                                       const TrainQuestion& question);
// What those headings mean, a line.
std::string StrategyLegend(const TrainQuestion& question);

// What ended the search: "--time-limit", or that the user did.
std::string EndOfSearch();

// Whether the search proved its answer, and why not and how far it may be from what
// is best.
std::string ProofText(const costmodel::StrategySearch& search);

}  // namespace acplan::cli
