#pragma once

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/strategy/training_job.h"
#include "graph/base/csv_table.h"

namespace acplan::costmodel {

// A measured training run, as a row of a table of runs describes it.
// docs/training_cost_model.md lists the columns.
struct TrainingRun {
  std::string id = {};
  std::string source = {};
  // The same for all runs of one model and strategy; `id` if the table does not have
  // it.
  std::string group = {};
  // Source, GPU, precision, and whether there are experts
  std::string stack = {};
  // All that runs have in common of which the strategy alone differs: source, model, GPUs,
  // batch, sequence and precision.
  std::string question = {};
  double seconds = 0;         // seconds of an iteration
  double memory_gib = 0;      // 0 if unknown
  bool is_allocated = false;  // the allocator counted the memory
  // The job that ran. If it cannot be represented, this is empty and `reason` says why.
  std::optional<TrainingJob> job = {};
  std::string reason = {};
};

// Returns the sizes of the model in a row; throws InputError.
ModelShape ShapeOfRow(const graph::CsvRow& row);

// Reads all rows. Throws InputError if a table lacks a column that all rows need or if a
// measured time is no number. A row that merely cannot be represented has the reason.
std::vector<TrainingRun> ReadRuns(const graph::CsvTable& table,
                                  const TrainingSystems& systems);

}  // namespace acplan::costmodel
