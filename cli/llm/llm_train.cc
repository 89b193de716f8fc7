#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/llm_input.h"
#include "cli/input/train_input.h"
#include "cli/llm/llm_train_text.h"
#include "cli/llm/training_plan_text.h"
#include "costmodel/training/training_report.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"

namespace acplan::cli {

namespace {

struct LlmTrainFlags {
  TrainFlags train;
  std::string tokens;
  std::string price;
  std::string output;
  std::string plan;
  bool json = false;
};

nlohmann::ordered_json PlanFile(const costmodel::TrainingReport& report,
                                const TrainQuestion& question) {
  nlohmann::ordered_json file = {
      {"format", "acplan.training_plan"},
      {"version", 1},
      {"model", question.model},
      {"strategy", ToJson(report.job)},
      {"budget_bytes", std::llround(question.budget)},
      {"iteration_s", report.time.Total()}};
  file.update(PlanJson(report));
  return file;
}

std::optional<double> PositiveNumber(const std::string& text,
                                     std::string_view flag) {
  if (text.empty()) return std::nullopt;
  return ParseNumber(text, flag, 1e-9, 1e18);
}

int RunLlmTrain(const LlmTrainFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    CheckResultOutput(flags.output, {".json", ".json.gz"},
                      {flags.train.config, flags.train.strategy});
  }
  if (!flags.plan.empty()) {
    CheckResultOutput(flags.plan, {".json", ".json.gz"},
                      {flags.train.config, flags.train.strategy, flags.output});
  }
  TrainQuestion question{.model = FileStem(flags.train.config),
                         .tokens = PositiveNumber(flags.tokens, "--tokens"),
                         .price = PositiveNumber(flags.price, "--price")};
  const costmodel::TrainingSystems systems = flags.train.ReadSystems();
  const costmodel::TrainingJob job = costmodel::JobOfSettings(
      flags.train.ReadModel(), flags.train.ReadSettings(), systems);
  question.budget = flags.train.Budget(job.cluster.gpu);
  if (!flags.plan.empty() &&
      job.strategy.recomputation != costmodel::Recomputation::kPlan) {
    throw InputError(
        fmt::format("--plan: expected --recompute plan beside it, found {}",
                    RecomputationText(job.strategy)));
  }
  const costmodel::TrainingReport report =
      costmodel::ReportOfTraining(job, question.budget);
  const std::string json = ToJson(report, question).dump(2) + "\n";
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  if (!flags.plan.empty() && report.Fits(question.budget)) {
    graph::WriteFile(flags.plan, PlanFile(report, question).dump(2) + "\n");
  }
  terminal.Print(flags.json ? json : TrainText(report, question, terminal));
  if (report.Fits(question.budget)) return kExitOk;
  return terminal.Explain(
      fmt::format("does not fit: stage {} holds {} of {}",
                  report.FullestStage(),
                  graph::FormatManyBytes(report.memory.Worst().Total()),
                  graph::FormatManyBytes(question.budget)),
      kExitInfeasible);
}

}  // namespace

Command AddLlmTrainCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmTrainFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-train",
      "Time and memory of training a Hugging Face model with a strategy");
  flags->train.AddTo(*app, true);
  app->add_option("--tokens", flags->tokens,
                  "of the whole training: GPU-hours are told")
      ->type_name("N");
  app->add_option("--price", flags->price, "of a GPU for an hour: cost is told")
      ->type_name("X");
  app->add_option("-o,--output", flags->output,
                  "write the report (.json or .json.gz)")
      ->type_name("FILE");
  app->add_option("--plan", flags->plan,
                  "write what each stage keeps and runs again (.json or "
                  ".json.gz), with --recompute plan")
      ->type_name("FILE");
  app->add_flag("--json", flags->json, "print JSON");
  app->footer(
      "Example:\n  acplan llm-train data/training/models/llama-3.1-8b.json "
      "--gpu H100 --gpus 64 --tp 2 --pp 2 --gbs 128 --seq 8192\n"
      "Exit status: 0 it fits, 2 bad input, 3 it does not fit.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmTrain(*flags, terminal);
          }};
}

}  // namespace acplan::cli
