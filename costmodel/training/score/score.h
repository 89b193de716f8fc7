#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/confidence/run_kind.h"
#include "costmodel/training/score/run_table.h"
#include "costmodel/training/time/step_time.h"

namespace acplan::costmodel {

// The prediction of a run. If there is none, `reason` says why and seconds is 0.
struct Prediction {
  std::string id = {};
  std::string source = {};
  StepTime time = {};
  double seconds = 0;
  double memory_gib = 0;  // 0 if unknown
  double measured_seconds = 0;
  double measured_gib = 0;  // 0 if unknown, or not counted by an allocator
  bool has_experts = false;
  RunKind kind = {};  // of the job that was predicted
  std::string reason = {};
};

// Returns the median of `values`, which must not be empty; for an even number of values,
// the mean of the middle two.
double MedianOf(std::vector<double> values);

std::vector<Prediction> PredictRuns(const std::vector<TrainingRun>& runs);

// Relative errors of predictions, signed: predicted / measured - 1.
struct ErrorSummary {
  std::string name = {};
  size_t rows = 0;   // rows with a prediction
  size_t total = 0;  // all rows
  double mean = 0;   // of absolute values
  double median = 0;
  double worst = 0;  // the error of the largest absolute value, signed
  double bias = 0;   // the mean of signed values
};
// Summarises `errors`, which must not be empty.
ErrorSummary Summarise(std::string name, const std::vector<double>& errors,
                       size_t total);

// The errors by source and of all runs. Sources are averaged so that none outweighs the
// others.
struct Score {
  // Sorted by name, those with a prediction.
  std::vector<ErrorSummary> sources = {};
  ErrorSummary all = {};
  // The runs without and with experts, if there are both; else empty.
  std::vector<ErrorSummary> families = {};
  double mean_of_sources = 0;
  double median_of_sources = 0;
  ErrorSummary memory = {};  // its rows are 0 if there is none
};
Score ScorePredictions(const std::vector<Prediction>& predictions);

// Returns the predictions that another model published for these runs: a table with the
// columns id and `column`, in seconds. Rows with an empty cell are not represented.
std::vector<Prediction> OtherPredictions(const std::vector<TrainingRun>& runs,
                                         const graph::CsvTable& table,
                                         std::string_view column);

}  // namespace acplan::costmodel
