#pragma once

#include <string>

#include "cli/calculon/llm_input.h"
#include "cli/terminal/terminal.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/llm/batch_times.h"
#include "costmodel/calculon/llm/statistics.h"
#include "graph/base/text_value.h"

namespace acplan::cli {

// Calculon's text for the statistics. `system`: the file, with all its keys.
std::string CalculonText(const LlmResult& result,
                         const costmodel::Statistics& statistics,
                         const graph::TextValue& system);

// "gpt3-175B on a100_80g: 64 processors, tensor 8 x pipeline 8 x data 1".
std::string LlmHeading(const costmodel::Execution& execution,
                       const std::string& model, const std::string& system,
                       const Terminal& terminal);

// The time of a batch by kind.
std::string TimeTable(const costmodel::BatchTimes& times,
                      const Terminal& terminal);

// Ours: time, memory and efficiency in tables. The names head it.
std::string LlmTable(const LlmResult& result,
                     const costmodel::Statistics& statistics,
                     const std::string& model, const std::string& system,
                     const Terminal& terminal);

// Prints why an execution is infeasible, in Calculon's words, and on stderr in
// numbers. Returns the exit code.
int ReportInfeasible(const LlmResult& result, const Terminal& terminal);

}  // namespace acplan::cli
