#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/output_files.h"
#include "cli/terminal/text.h"
#include "cli/training/train_compare_text.h"
#include "cli/training/train_input.h"
#include "costmodel/training/training_report.h"
#include "graph/base/file_io.h"
#include "graph/base/json_text.h"

namespace acplan::cli {

namespace {

using costmodel::TrainingReport;

struct LlmCompareFlags {
  TrainFlags train;
  std::vector<std::string> strategies;
  std::string output;
  bool json = false;
};

std::vector<ComparedTraining> Compare(const LlmCompareFlags& flags,
                                      const Terminal& terminal) {
  const costmodel::ModelShape shape = flags.train.ReadModel(terminal);
  const costmodel::TrainingSystems systems = flags.train.ReadSystems();
  std::vector<ComparedTraining> compared;
  for (const std::string& argument : flags.strategies) {
    const NamedStrategy strategy = ReadNamedStrategy(argument);
    const costmodel::TrainingJob job = costmodel::JobOfSettings(
        shape, flags.train.ReadSettings(strategy.settings), systems);
    const TrainQuestion question = flags.train.Question(job.cluster.gpu);
    compared.push_back(
        {strategy.name, question,
         costmodel::ReportOfTraining(job, BudgetOf(question, job))});
  }
  return compared;
}

int RunLlmCompare(const LlmCompareFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    RequireExtension(flags.output, {".json", ".json.gz"});
  }
  const std::vector<ComparedTraining> compared = Compare(flags, terminal);
  const std::string json = graph::IndentedText(ComparisonJson(compared));
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(
      flags.json ? json
                 : BrokenLines(ComparisonText(compared, terminal), terminal));
  const bool fits =
      std::ranges::any_of(compared, [](const ComparedTraining& one) {
        return one.report.Fits(BudgetOf(one.question, one.report.job));
      });
  return fits ? kExitOk
              : terminal.Explain("infeasible: no strategy fits",
                                 kExitInfeasible);
}

}  // namespace

Command AddTrainCompareCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmCompareFlags>();
  CLI::App* app = program.add_subcommand(
      "compare", "Compare training strategies side by side");
  flags->train.AddTo(*app, true);
  app->add_option("STRATEGIES", flags->strategies,
                  "each: settings (tp=8,pp=4,recompute=plan), a file of "
                  "settings, or a file that train show, train plan or train "
                  "search (FILE:RANK from 1, or FILE for the fastest) wrote")
      ->required();
  AddOutput(*app, flags->output, "write the reports here (.json or .json.gz)");
  app->add_flag("--json", flags->json, "print JSON");
  app->footer(
      "Example:\n  acplan train compare example:llama-3.1-8b "
      "tp=2 tp=4,pp=2 pp=4,recompute=plan --gpu H100 --gpus 64 --gbs 512 --seq "
      "8192\nExit status: 0 compared, 2 bad input, 3 no strategy fits.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmCompare(*flags, terminal);
          }};
}

}  // namespace acplan::cli
