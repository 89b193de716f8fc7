#pragma once

#include <CLI/CLI.hpp>
#include <functional>

#include "cli/input/exit_codes.h"
#include "cli/terminal/terminal.h"

namespace acplan::cli {

// A command of the program: its place among the flags, and a function that runs
// it once they are parsed. `run` returns the exit code and throws InputError
// for bad input and LimitError for kExitLimit.
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
Command AddReportCommand(CLI::App& program);
Command AddExplainCommand(CLI::App& program);
Command AddDataflowCommand(CLI::App& program);
Command AddRematCommand(CLI::App& program);
Command AddLlmCommand(CLI::App& program);
Command AddLlmProfileCommand(CLI::App& program);
Command AddLlmPlanCommand(CLI::App& program);
Command AddLlmSearchCommand(CLI::App& program);
Command AddLlmOptimalExecutionCommand(CLI::App& program);
Command AddLlmAllExecutionsCommand(CLI::App& program);
Command AddLlmMergeCommand(CLI::App& program);
Command AddLlmCompareCommand(CLI::App& program);
Command AddLlmValidationCommand(CLI::App& program);
Command AddLlmScoreCommand(CLI::App& program);
Command AddLlmTrainCommand(CLI::App& program);
Command AddCompletionCommand(CLI::App& program);
Command AddLlmParameterCalculatorCommand(CLI::App& program);
Command AddLlmCsvCommand(CLI::App& program);
Command AddLlmHeatmapCommand(CLI::App& program);
Command AddLlm3dplotCommand(CLI::App& program);
Command AddLlmFindHugeCommand(CLI::App& program);
Command AddFitCommand(CLI::App& program);
Command AddManualCommand(CLI::App& program);
Command AddVersionCommand(CLI::App& program);

}  // namespace acplan::cli
