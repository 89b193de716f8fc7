#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/strategy/training_job.h"
#include "graph/base/csv_table.h"

namespace acplan::costmodel {

// A training run that somebody measured, as a row of a table of runs says it. The
// columns are listed in docs/training_cost_model.md.
struct TrainingRun {
  std::string id = {};
  std::string source = {};
  std::string group =
      {};  // runs of one model and strategy; `id` where not told
  std::string stack = {};  // source, GPU, precision, whether there are experts
  double seconds = 0;      // of an iteration
  double memory_gib = 0;   // 0: not told
  bool is_allocated = false;  // memory is what the allocator counted
  // What ran; none where `reason` says why it cannot be represented.
  std::optional<TrainingJob> job = {};
  std::string reason = {};
};

// Sizes of the model in a row; throws InputError.
ModelShape ShapeOfRow(const graph::CsvRow& row);

// All rows. Throws InputError where a table lacks a column that all rows need or
// a measured time is no number; a row that only cannot be represented says so.
std::vector<TrainingRun> ReadRuns(const graph::CsvTable& table,
                                  const TrainingSystems& systems);

}  // namespace acplan::costmodel
