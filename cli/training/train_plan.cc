#include <fmt/format.h>

#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/output_files.h"
#include "cli/terminal/human_numbers.h"
#include "cli/terminal/text.h"
#include "cli/training/megatron_text.h"
#include "cli/training/strategy_text.h"
#include "cli/training/train_input.h"
#include "cli/training/train_show_text.h"
#include "cli/training/training_plan_text.h"
#include "costmodel/training/training_report.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::Recomputation;
using costmodel::TrainingJob;
using costmodel::TrainingReport;
using nlohmann::ordered_json;

struct LlmPlanFlags {
  TrainFlags train;
  std::string program;
  std::string output;
  bool json = false;
};

TrainingJob ReadJob(const TrainFlags& flags, const Terminal& terminal) {
  const std::string& said = flags.settings.at("recompute");
  if (!said.empty() && said != "plan") {
    throw InputError(fmt::format(
        "--recompute: expected plan or no value, as train plan chooses the "
        "recomputation (train show takes other values); found {}",
        graph::Quoted(said)));
  }
  costmodel::StrategySettings settings = flags.ReadSettings();
  SetRecomputation("plan", settings);
  return costmodel::JobOfSettings(flags.ReadModel(terminal), settings,
                                  flags.ReadSystems());
}

// Returns reports of the strategy without recomputation, with that of whole
// layers, and with the plan.
std::vector<TrainingReport> ReportsOf(const TrainingJob& job, double budget) {
  std::vector<TrainingReport> reports;
  for (const Recomputation recomputation :
       {Recomputation::kNone, Recomputation::kFull, Recomputation::kPlan}) {
    TrainingJob one = job;
    one.strategy.recomputation = recomputation;
    reports.push_back(costmodel::ReportOfTraining(one, budget));
  }
  return reports;
}

std::string ComparisonText(const std::vector<TrainingReport>& reports,
                           double budget, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kRight, kRight, kRight, kLeft});
  table.AddRow(
      {"recompute", "iteration", "recomputation", "fullest stage", ""});
  for (const TrainingReport& report : reports) {
    const double seconds = report.time.Total();
    table.AddRow({RecomputationText(report.job.strategy), HumanSeconds(seconds),
                  fmt::format("{:.2f}%", 100 * report.time.recompute / seconds),
                  graph::FormatManyBytes(report.memory.Worst().Total()),
                  report.Fits(budget) ? "fits" : "does not fit"});
  }
  return table.ToString(terminal) + "\n";
}

ordered_json PlanFile(const std::vector<TrainingReport>& reports,
                      const TrainQuestion& question) {
  const TrainingReport& with_plan = reports.back();
  const double budget = BudgetOf(question, with_plan.job);
  ordered_json file = {{"format", "acplan.training_plan"},
                       {"version", 1},
                       {"model", question.model},
                       {"strategy", StrategyJson(with_plan.job)},
                       {"budget_bytes", BytesJson(budget)},
                       {"fits", with_plan.Fits(budget)},
                       {"iteration_s", with_plan.time.Total()},
                       {"recompute_s", with_plan.time.recompute}};
  file.update(PlanJson(with_plan));
  for (const TrainingReport& report : reports) {
    if (report.plan) continue;
    file["others"].push_back(
        {{"recompute", RecomputationText(report.job.strategy)},
         {"iteration_s", report.time.Total()},
         {"total_bytes", BytesJson(report.memory.Worst().Total())},
         {"fits", report.Fits(budget)}});
  }
  return file;
}

// Returns the best recomputation in the words of a program, beside the plan.
std::string ProgramText(const costmodel::MegatronAnswer& answer,
                        const TrainingReport& with_plan,
                        const TrainQuestion& question,
                        MegatronProgram program) {
  const double budget = BudgetOf(question, answer.report.job);
  std::vector<std::string> comments =
      MegatronComments(answer, question.model, budget);
  const double seconds = answer.report.time.Total();
  comments.push_back(fmt::format(
      "{} of {} ways to recompute that it can say; {}",
      answer.fits ? "the fastest" : "does not fit: the smallest",
      answer.tried_count,
      with_plan.Fits(budget) ? fmt::format("the plan of train plan takes {}",
                                           HumanSeconds(with_plan.time.Total()))
                             : "no plan fits either"));
  if (with_plan.Fits(budget) && with_plan.time.Total() > 0) {
    comments.back() += fmt::format(
        " ({:+.2f}%)", 100 * (with_plan.time.Total() / seconds - 1));
  }
  return MegatronText(answer.report, program, comments);
}

int RunForProgram(const LlmPlanFlags& flags, MegatronProgram program,
                  const std::vector<TrainingReport>& reports,
                  const TrainQuestion& question, const Terminal& terminal) {
  const TrainingReport& with_plan = reports.back();
  const TrainingJob& job = with_plan.job;
  RequireMegatron(job.strategy, "--for");
  const costmodel::MegatronAnswer answer =
      costmodel::BestOfMegatron(job, BudgetOf(question, job));
  const std::string text = ProgramText(answer, with_plan, question, program);
  ordered_json file = PlanFile(reports, question);
  file["megatron"] = MegatronJson(answer, text);
  const std::string json = graph::IndentedText(file);
  if (!flags.output.empty() && answer.fits) {
    graph::WriteFile(flags.output, json);
  }
  terminal.Print(flags.json ? json : text);
  return answer.fits
             ? kExitOk
             : terminal.Explain("infeasible: nothing that it can say fits",
                                kExitInfeasible);
}

int RunLlmPlan(const LlmPlanFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    RequireExtension(flags.output, {".json", ".json.gz"});
  }
  const TrainingJob job = ReadJob(flags.train, terminal);
  const TrainQuestion question = flags.train.Question(job.cluster.gpu);
  const double budget = BudgetOf(question, job);
  const std::vector<TrainingReport> reports = ReportsOf(job, budget);
  const TrainingReport& with_plan = reports.back();
  const MegatronProgram program = ParseMegatronProgram(flags.program);
  if (program != MegatronProgram::kNone) {
    return RunForProgram(flags, program, reports, question, terminal);
  }
  const bool fits = with_plan.Fits(budget);
  const std::string json = graph::IndentedText(PlanFile(reports, question));
  if (!flags.output.empty() && fits) graph::WriteFile(flags.output, json);
  const std::string text = HeadingText(with_plan, question, terminal) +
                           PlanText(with_plan, terminal) +
                           ComparisonText(reports, budget, terminal) +
                           MemoryText(with_plan, question, terminal);
  terminal.Print(flags.json ? json : BrokenLines(text, terminal));
  return fits ? kExitOk
              : terminal.Explain("infeasible: no plan fits", kExitInfeasible);
}

}  // namespace

Command AddTrainPlanCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmPlanFlags>();
  CLI::App* app = program.add_subcommand(
      "plan",
      "Choose what each pipeline stage keeps and recomputes, optimally");
  flags->train.AddTo(*app, true);
  AddProgramTo(*app, flags->program,
               "print the strategy, with the best recomputation that this "
               "program can say");
  AddOutput(*app, flags->output,
            "write the plan here if one fits (.json or .json.gz)");
  app->add_flag("--json", flags->json, "print the plan as JSON");
  app->footer(
      "Example:\n  acplan train plan example:llama-3.1-70b "
      "--gpu H100 --gpus 64 --tp 8 --pp 4 --gbs 64 --seq 8192\nRecomputation "
      "settings of the strategy are ignored.\nExit status: 0 a plan was found, "
      "2 bad input, 3 no plan fits.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmPlan(*flags, terminal);
          }};
}

}  // namespace acplan::cli
