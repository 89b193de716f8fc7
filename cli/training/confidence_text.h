#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/training/train_input.h"
#include "costmodel/training/confidence/intervals.h"
#include "costmodel/training/search/strategy_search.h"

namespace acplan::cli {

// Returns "-12 +31%": the ends of an interval relative to the prediction.
std::string IntervalCell(const costmodel::Interval& interval);

// Returns the interval of a predicted time, and the nearest measured run, in
// two lines.
std::string ConfidenceText(const costmodel::Confidence& confidence,
                           double seconds);
nlohmann::ordered_json ConfidenceJson(const costmodel::Confidence& confidence,
                                      double seconds);

nlohmann::ordered_json CalibrationJson(
    const costmodel::Calibration& calibration);

// Returns the fastest strategy that a search found within measured territory,
// in a few lines.
std::string MeasuredText(const costmodel::TrainingJob& job,
                         const costmodel::StrategySearch& search,
                         const TrainQuestion& question);

// Returns the two or three of the best strategies whose measurement decides among these, and
// what they are expected to bring, in a line; nothing if there are fewer than three.
std::string NextRunsText(const costmodel::TrainingJob& job,
                         const costmodel::StrategySearch& search,
                         const costmodel::IntervalModel& intervals);
// Returns the same, with nothing measured first; runs are ranks from 1.
nlohmann::ordered_json NextRunsJson(const costmodel::TrainingJob& job,
                                    const costmodel::StrategySearch& search,
                                    const costmodel::IntervalModel& intervals);

// Scores a table of errors: the coverage of intervals that are fitted to other
// sources, by kind, as a table or as JSON.
std::string CoverageText(const std::vector<costmodel::Coverage>& coverages,
                         const Terminal& terminal);
std::string CoverageJson(const std::vector<costmodel::Coverage>& coverages);

}  // namespace acplan::cli
