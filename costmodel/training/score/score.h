#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/score/run_table.h"
#include "costmodel/training/time/step_time.h"

namespace acplan::costmodel {

// What the model says of a run; `reason` says why it says nothing (seconds 0).
struct Prediction {
  std::string id = {};
  std::string source = {};
  StepTime time = {};
  double seconds = 0;
  double memory_gib = 0;  // 0: not told
  double measured_seconds = 0;
  double measured_gib = 0;  // 0: not told, or not what an allocator counted
  std::string reason = {};
};

// `values` must not be empty; of an even number, the mean of the middle two.
double MedianOf(std::vector<double> values);

std::vector<Prediction> PredictRuns(const std::vector<TrainingRun>& runs);

// Relative errors of predictions, signed: predicted / measured - 1.
struct ErrorSummary {
  std::string name = {};
  size_t rows = 0;   // predicted
  size_t total = 0;  // that there are
  double mean = 0;   // of absolute values
  double median = 0;
  double worst = 0;  // of the largest absolute value, signed
  double bias = 0;   // mean of signed values
};
// `errors` must not be empty.
ErrorSummary Summarise(std::string name, const std::vector<double>& errors,
                       size_t total);

// As sources are averaged, so that none outweighs the others.
struct Score {
  std::vector<ErrorSummary> sources = {};  // by name, those with a prediction
  ErrorSummary all = {};
  double mean_of_sources = 0;
  double median_of_sources = 0;
  ErrorSummary memory = {};  // rows 0: none
};
Score ScorePredictions(const std::vector<Prediction>& predictions);

// The predictions that another model published for these runs: a table with the
// columns id and `column`, seconds. Rows with an empty cell are not represented.
std::vector<Prediction> OtherPredictions(const std::vector<TrainingRun>& runs,
                                         const graph::CsvTable& table,
                                         std::string_view column);

}  // namespace acplan::costmodel
