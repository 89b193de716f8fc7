#pragma once

#include <array>
#include <string_view>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/llm/evaluation.h"

namespace acplan::costmodel {

inline constexpr int kStatistics = 96;

// Their names, in the order of the record: docs/file_formats.md, "Statistics".
extern const std::array<std::string_view, kStatistics> kStatisticNames;

// The statistics of an execution that fits, by kStatisticNames: bytes, bytes/s,
// FLOPs, seconds, samples/s. NaN where one does not exist.
using Statistics = std::array<double, kStatistics>;

Statistics ComputeStatistics(const Model& model, const System& system,
                             const Execution& execution,
                             const Evaluation& evaluation);

// By name, of those in kStatisticNames.
double Statistic(const Statistics& statistics, std::string_view name);

}  // namespace acplan::costmodel
