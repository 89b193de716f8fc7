#pragma once

#include <string_view>
#include <vector>

#include "costmodel/training/score/run_table.h"
#include "costmodel/training/score/score.h"

namespace acplan::costmodel {

// Whether a table is of readings of Megatron-Core's functional tests: arguments as
// they were given, and what the allocator of the last rank counted
// (docs/training_cost_model.md, "Readings of memory").
bool IsMemoryTable(const graph::CsvTable& table);

// What the model says of each reading: `memory_gib` of the last stage beside
// `measured_gib`, no times. A reading that cannot be represented says why. Throws
// InputError where a reading has no id or no bytes.
std::vector<Prediction> PredictMemoryTable(const graph::CsvTable& table,
                                           const TrainingSystems& systems);

// Errors of memory by source, and of all (the last); empty where there are none.
std::vector<ErrorSummary> SummariseMemory(
    const std::vector<Prediction>& predictions);

}  // namespace acplan::costmodel
