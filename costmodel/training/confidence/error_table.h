#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/training/confidence/run_kind.h"
#include "graph/base/csv_table.h"

namespace acplan::costmodel {

// The runs that had no part in the fit with which a run was predicted.
// Without a generation of GPUs, the model has only what was known of them before any run.
enum class LeftOut { kNothing, kGroup, kSource, kGeneration };

// The error of a prediction of a measured run.
struct RunError {
  std::string id = {};
  std::string source = {};
  std::string group = {};  // the runs that are alike in model and strategy
  LeftOut left_out = LeftOut::kNothing;
  RunKind kind = {};
  double ratio = 0;  // measured by predicted time
};

// Returns whether a table has errors, as RunErrorsCsv writes them.
bool IsErrorTable(const graph::CsvTable& table);

// Parses errors. Throws InputError that names the line and the column of a wrong cell, or if
// the table has no row.
std::vector<RunError> ReadRunErrors(const graph::CsvTable& table);

std::string RunErrorsCsv(std::span<const RunError> errors);

}  // namespace acplan::costmodel
