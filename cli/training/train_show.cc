#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/output_files.h"
#include "cli/terminal/text.h"
#include "cli/training/train_input.h"
#include "cli/training/train_show_text.h"
#include "costmodel/training/training_report.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/json_text.h"

namespace acplan::cli {

namespace {

struct LlmTrainFlags {
  TrainFlags train;
  std::string output;
  bool json = false;
};

int RunLlmTrain(const LlmTrainFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    RequireExtension(flags.output, {".json", ".json.gz"});
  }
  const costmodel::ModelConfig model = flags.train.ReadConfig(terminal);
  const costmodel::TrainingJob job = costmodel::JobOfSettings(
      model.shape, flags.train.ReadSettings(), flags.train.ReadSystems());
  TrainQuestion question = flags.train.Question(job.cluster.gpu);
  question.notes = model.notes;
  const costmodel::TrainingReport report =
      costmodel::ReportOfTraining(job, BudgetOf(question, job));
  const std::string json = graph::IndentedText(ToJson(report, question));
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(flags.json ? json
                            : BrokenLines(TrainText(report, question, terminal),
                                          terminal));
  if (report.Fits(BudgetOf(question, job))) return kExitOk;
  return terminal.Explain(
      fmt::format("does not fit: stage {} holds {} of {}",
                  report.FullestStage(),
                  graph::FormatManyBytes(report.memory.Worst().Total()),
                  graph::FormatManyBytes(BudgetOf(question, job))),
      kExitInfeasible);
}

}  // namespace

Command AddTrainShowCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmTrainFlags>();
  CLI::App* app = program.add_subcommand(
      "show", "Estimate time and memory of training a model with a strategy");
  flags->train.AddTo(*app, true);
  AddOutput(*app, flags->output, "write the report here (.json or .json.gz)");
  app->add_flag("--json", flags->json, "print JSON");
  app->footer(
      "Example:\n  acplan train show example:llama-3.1-8b "
      "--gpu H100 --gpus 64 --tp 2 --pp 2 --gbs 128 --seq 8192\n"
      "Exit status: 0 it fits, 2 bad input, 3 it does not fit.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmTrain(*flags, terminal);
          }};
}

}  // namespace acplan::cli
