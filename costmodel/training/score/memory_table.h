#pragma once

#include <string_view>
#include <vector>

#include "costmodel/training/score/run_table.h"
#include "costmodel/training/score/score.h"

namespace acplan::costmodel {

// Returns whether a table has readings of Megatron-Core's functional tests: the given
// arguments, and the bytes that the allocator of the last rank counted
// (docs/training_cost_model.md, "Readings of memory").
bool IsMemoryTable(const graph::CsvTable& table);

// Returns the job of a reading. Throws InputError for one that cannot be represented.
TrainingJob JobOfReading(const graph::CsvRow& row,
                         const TrainingSystems& systems);

// Predicts each reading: `memory_gib` of the last stage beside `measured_gib`, without
// times. A reading that cannot be represented has the reason. Throws InputError if a
// reading has no id or no bytes.
std::vector<Prediction> PredictMemoryTable(const graph::CsvTable& table,
                                           const TrainingSystems& systems);

// Returns the errors of memory by source, and of all readings (the last entry); empty if
// there are none.
std::vector<ErrorSummary> SummariseMemory(
    const std::vector<Prediction>& predictions);

}  // namespace acplan::costmodel
