#pragma once

#include <CLI/CLI.hpp>
#include <functional>
#include <string>
#include <vector>

#include "cli/input/exit_codes.h"
#include "cli/terminal/terminal.h"

namespace acplan::cli {

// A command of the program or of a folder of commands: its place among the flags,
// and a function that runs it once they are parsed. `run` returns the exit code
// and throws InputError for bad input and LimitError for kExitLimit.
struct Command {
  CLI::App* app = nullptr;
  std::function<int(const Terminal&)> run;
};

Command AddPlanCommand(CLI::App& program);
Command AddFrontierCommand(CLI::App& program);
Command AddCheckCommand(CLI::App& program);
Command AddEmitCommand(CLI::App& program);
Command AddAuditCommand(CLI::App& program);
Command AddShowCommand(CLI::App& program);
Command AddExplainCommand(CLI::App& program);
Command AddSimulateCommand(CLI::App& program);
Command AddReportCommand(CLI::App& program);
Command AddLengthsPlanCommand(CLI::App& program);
Command AddLengthsSimulateCommand(CLI::App& program);
Command AddLengthsCheckCommand(CLI::App& program);
Command AddLengthsExplainCommand(CLI::App& program);
Command AddLengthsReportCommand(CLI::App& program);
Command AddProfileCommand(CLI::App& program);
Command AddRematCommand(CLI::App& program);
Command AddScheduleCommand(CLI::App& program);
Command AddModuleCurveCommand(CLI::App& program);
Command AddModulePolicyCommand(CLI::App& program);
Command AddModuleDataflowCommand(CLI::App& program);
Command AddTrainShowCommand(CLI::App& program);
Command AddTrainPlanCommand(CLI::App& program);
Command AddTrainSearchCommand(CLI::App& program);
Command AddTrainFitCommand(CLI::App& program);
Command AddTrainCompareCommand(CLI::App& program);
Command AddTrainProfileCommand(CLI::App& program);
Command AddTrainScoreCommand(CLI::App& program);
Command AddLlmCommand(CLI::App& program);
Command AddLlmOptimalExecutionCommand(CLI::App& program);
Command AddLlmAllExecutionsCommand(CLI::App& program);
Command AddLlmMergeCommand(CLI::App& program);
Command AddLlmValidationCommand(CLI::App& program);
Command AddLlmParameterCalculatorCommand(CLI::App& program);
Command AddLlmCsvCommand(CLI::App& program);
Command AddLlmHeatmapCommand(CLI::App& program);
Command AddLlm3dplotCommand(CLI::App& program);
Command AddLlmFindHugeCommand(CLI::App& program);
Command AddTorchCommand(CLI::App& program);
Command AddCompletionCommand(CLI::App& program);
Command AddManualCommand(CLI::App& program);
Command AddVersionCommand(CLI::App& program);

// Replaces the program by `python -m acplan` with these arguments. Throws InputError if
// there is no Python.
int RunTorch(const std::vector<std::string>& arguments);

}  // namespace acplan::cli
