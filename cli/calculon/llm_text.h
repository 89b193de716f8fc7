#pragma once

#include <string>

#include "cli/calculon/llm_input.h"
#include "cli/terminal/terminal.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/llm/batch_times.h"
#include "costmodel/calculon/llm/statistics.h"
#include "graph/base/text_value.h"

namespace acplan::cli {

// Returns Calculon's text for the statistics. `system` is the file, with all
// its keys.
std::string CalculonText(const LlmResult& result,
                         const costmodel::Statistics& statistics,
                         const graph::TextValue& system);

// Returns "gpt3-175B on a100_80g: 64 processors, tensor 8 x pipeline 8 x data
// 1".
std::string LlmHeading(const costmodel::Execution& execution,
                       const std::string& model, const std::string& system,
                       const Terminal& terminal);

// Returns a table of the time of a batch by kind.
std::string TimeTable(const costmodel::BatchTimes& times,
                      const Terminal& terminal);

// Returns our own text: time, memory and efficiency in tables under a heading
// with the names.
std::string LlmTable(const LlmResult& result,
                     const costmodel::Statistics& statistics,
                     const std::string& model, const std::string& system,
                     const Terminal& terminal);

// Prints why an execution is infeasible: on stdout in Calculon's words, on
// stderr in numbers. Returns the exit code.
int ReportInfeasible(const LlmResult& result, const Terminal& terminal);

}  // namespace acplan::cli
