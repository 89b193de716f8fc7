#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <stdexcept>

#include "cli/terminal.h"

namespace acplan::cli {

// A limit was hit before there was anything to answer.
class LimitError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// A command of the program: its place among the flags, and what it does once
// they are parsed. `run` returns the exit code and throws InputError for bad
// input and LimitError for kExitLimit.
struct Command {
  CLI::App* app = nullptr;
  std::function<int(const Terminal&)> run;
};

Command AddPlanCommand(CLI::App& program);
Command AddBaselineCommand(CLI::App& program);
Command AddCompareCommand(CLI::App& program);
Command AddFrontierCommand(CLI::App& program);
Command AddCheckCommand(CLI::App& program);
Command AddTreeCommand(CLI::App& program);
Command AddCurveCommand(CLI::App& program);
Command AddOpsCommand(CLI::App& program);
Command AddProfileCommand(CLI::App& program);
Command AddSimulateCommand(CLI::App& program);
Command AddDataflowCommand(CLI::App& program);
Command AddLlmCommand(CLI::App& program);
Command AddLlmProfileCommand(CLI::App& program);
Command AddLlmPlanCommand(CLI::App& program);
Command AddLlmSearchCommand(CLI::App& program);
Command AddLlmOptimalExecutionCommand(CLI::App& program);
Command AddLlmAllExecutionsCommand(CLI::App& program);
Command AddLlmMergeCommand(CLI::App& program);
Command AddLlmCompareCommand(CLI::App& program);
Command AddLlmValidationCommand(CLI::App& program);
Command AddCompletionCommand(CLI::App& program);
Command AddLlmParameterCalculatorCommand(CLI::App& program);
Command AddLlmCsvCommand(CLI::App& program);
Command AddLlmHeatmapCommand(CLI::App& program);
Command AddLlm3dplotCommand(CLI::App& program);
Command AddLlmFindHugeCommand(CLI::App& program);
Command AddFitCommand(CLI::App& program);
Command AddVersionCommand(CLI::App& program);

inline constexpr int kExitOk = 0;
inline constexpr int kExitFailure = 1;  // anything else, a broken plan among it
inline constexpr int kExitBadInput = 2;    // usage or bad input
inline constexpr int kExitInfeasible = 3;  // proven
inline constexpr int kExitLimit = 4;       // a limit was hit without a plan

}  // namespace acplan::cli
