#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "cli/terminal/terminal.h"
#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/fit.h"

namespace acplan::cli {

// A question to the cost model, and its answer.
struct LlmResult {
  costmodel::Model model;
  costmodel::System system;
  costmodel::Execution execution;
  costmodel::Evaluation evaluation;
};

// The arguments APPLICATION, EXECUTION and SYSTEM of a command.
struct StrategyFlags {
  std::string application;
  std::string execution;
  std::string system;

  void AddTo(CLI::App& app, const std::string& execution_help);
};

// Reads a file of the cost model. Throws InputError if its name ends in neither
// `.json` nor `.json.gz`. Logs keys of a model or a system that are ignored.
costmodel::Model ReadModelInput(const std::string& path,
                                const Terminal& terminal);
costmodel::System ReadSystemInput(const std::string& path,
                                  const Terminal& terminal);
costmodel::Execution ReadExecutionInput(const std::string& path);

// Throws InputError if the verdict is that the execution of this file
// contradicts the model or the system.
void RefuseContradiction(const std::string& path,
                         const costmodel::Verdict& verdict,
                         const costmodel::Model& model,
                         const costmodel::System& system,
                         const costmodel::Execution& execution);

}  // namespace acplan::cli
