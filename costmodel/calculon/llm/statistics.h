#pragma once

#include <array>
#include <string_view>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/llm/evaluation.h"

namespace acplan::costmodel {

inline constexpr int kStatistics = 96;

// The names of the statistics, in the order of the record: docs/file_formats.md,
// "Statistics".
extern const std::array<std::string_view, kStatistics> kStatisticNames;

// The statistics of an execution that fits, indexed like kStatisticNames: bytes, bytes/s,
// FLOPs, seconds, samples/s. NaN for one that does not exist.
using Statistics = std::array<double, kStatistics>;

Statistics ComputeStatistics(const Model& model, const System& system,
                             const Execution& execution,
                             const Evaluation& evaluation);

// Returns the statistic with a name of kStatisticNames.
double Statistic(const Statistics& statistics, std::string_view name);

}  // namespace acplan::costmodel
