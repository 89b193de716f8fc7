#pragma once

#include <string>

#include "cli/terminal.h"
#include "costmodel/application/model.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/statistics.h"
#include "costmodel/text_value.h"

namespace acplan::cli {

// A question to the cost model, and its answer.
struct LlmResult {
  costmodel::Model model;
  costmodel::System system;
  costmodel::Execution execution;
  costmodel::Corrections corrections;
  costmodel::Evaluation evaluation;
};

// A number with three decimals and a prefix, as Calculon prints it: "1.266
// GiB", "1.143 TB/s".
enum class HumanUnit { kBytes, kBandwidth, kFlops, kCount };
std::string HumanNumber(double value, HumanUnit unit);

// Calculon's text for the statistics. `system`: the file, with all its keys.
std::string CalculonText(const LlmResult& result,
                         const costmodel::Statistics& statistics,
                         const costmodel::TextValue& system);

// Ours: time, memory and efficiency in tables. The names head it.
std::string LlmTable(const LlmResult& result,
                     const costmodel::Statistics& statistics,
                     const std::string& model, const std::string& system,
                     const Terminal& terminal);

// Why an execution is infeasible, in Calculon's words and in numbers.
std::string InfeasibleText(const LlmResult& result);
std::string InfeasibleNumbers(const LlmResult& result);

}  // namespace acplan::cli
