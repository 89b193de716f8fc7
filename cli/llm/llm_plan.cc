#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/input/llm_input.h"
#include "cli/input/llm_strategies.h"
#include "cli/llm/llm_plan_text.h"
#include "cli/llm/llm_text.h"
#include "costmodel/llm/records.h"
#include "costmodel/planning/plan_record.h"
#include "costmodel/planning/strategy_plan.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

namespace acplan::cli {

namespace {

using costmodel::PlanRecord;
using costmodel::PlanStatus;

struct LlmPlanFlags {
  StrategyFlags strategy;
  std::string budget;
  std::string output;
  std::string stages = "all";
  bool json = false;
  ModeFlags mode = {.mode = "corrected", .correct = {}};
};

void CheckFlags(const LlmPlanFlags& flags) {
  flags.mode.Resolve();
  if (!flags.mode.correct.empty()) {
    throw InputError(fmt::format(
        "--correct: expected none with llm-plan, which knows --mode corrected "
        "and --mode calculon only, found {}",
        graph::Quoted(flags.mode.correct.front())));
  }
  if (flags.stages != "all" && flags.stages != "first") {
    throw InputError(fmt::format("--stages: expected all or first, found {}",
                                 graph::Quoted(flags.stages)));
  }
  if (!flags.output.empty()) {
    CheckResultOutput(
        flags.output, {".json", ".json.gz"},
        {flags.strategy.application, StrategyFile(flags.strategy.execution),
         flags.strategy.system});
  }
}

PlanRecord Plan(const LlmPlanFlags& flags, const LlmResult& question) {
  const auto& [model, system, execution, corrections, unused] = question;
  PlanRecord record;
  if (flags.mode.mode == "calculon") {
    record = RecordFixedChoice(model, system, execution);
  } else {
    const costmodel::StrategyPlan plan = PlanStrategy(model, system, execution);
    RequireWholePlan(model, system, execution, plan);
    record = RecordPlan(model, system, execution, plan);
  }
  record.application = FileStem(flags.strategy.application);
  record.system = FileStem(flags.strategy.system);
  return record;
}

int RunLlmPlan(const LlmPlanFlags& flags, const Terminal& terminal) {
  CheckFlags(flags);
  const LlmResult question = ReadPlanQuestion(
      flags.strategy, flags.mode.Resolve(), flags.budget, terminal);
  if (!question.evaluation.verdict.Fits()) {
    return ReportInfeasible(question, terminal);
  }
  const PlanRecord record = Plan(flags, question);
  if (!flags.output.empty()) {
    graph::WriteFile(
        flags.output,
        costmodel::ResultText(ToJson(record), flags.output.ends_with(".gz")));
  }
  if (flags.json) {
    terminal.Print(ToJson(record).dump(2) + "\n");
  } else {
    terminal.Report(ResultLevel::kInfo,
                    PlanText(record, flags.stages == "first", terminal));
  }
  return record.status == PlanStatus::kInfeasible
             ? terminal.Explain("infeasible: no plan fits", kExitInfeasible)
             : kExitOk;
}

}  // namespace

Command AddLlmPlanCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmPlanFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-plan",
      "What each stage of a strategy keeps and recomputes, optimally");
  flags->strategy.AddTo(*app, kPlannedExecutionHelp);
  app->add_option("--budget", flags->budget,
                  "memory of a processor in place of the system's: 40GiB, "
                  "80GB, bytes")
      ->type_name("SIZE");
  app->add_option("-o,--output", flags->output,
                  "write the plan here (.json or .json.gz)")
      ->type_name("FILE");
  app->add_flag("--json", flags->json, "print the plan as JSON");
  app->add_option("--mode", flags->mode.mode,
                  "corrected (default): the best of all plans; calculon: the "
                  "best fixed policy by its arithmetic")
      ->type_name("MODE");
  app->add_option("--correct", flags->mode.correct)
      ->group("")
      ->allow_extra_args(false);
  app->add_option("--stages", flags->stages,
                  "show all stages of the pipeline (default), or the first")
      ->type_name("WHICH");
  app->footer(
      "Example:\n  acplan llm-plan data/models/gpt3-175B.json "
      "data/validation/seqsel/tab5/gpt3-175B_seqsel.json "
      "data/systems/a100_80g.json --budget 60GiB\n"
      "Exit status: 0 a plan was found, 2 bad input, 3 infeasible.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmPlan(*flags, terminal);
          }};
}

}  // namespace acplan::cli
