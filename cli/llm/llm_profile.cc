#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/input/flags.h"
#include "cli/input/llm_input.h"
#include "cli/input/llm_strategies.h"
#include "cli/llm/llm_text.h"
#include "cli/terminal/text.h"
#include "costmodel/llm/schedule.h"
#include "costmodel/profile/stage_profile.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/profile/profile.h"

namespace acplan::cli {

namespace {

struct LlmProfileFlags {
  StrategyFlags strategy;
  std::string output;
  std::string stage = "0";
  bool json = false;
  ModeFlags mode{.mode = "corrected", .correct = {}};
};

std::string ToText(const graph::Profile& profile, const LlmResult& result,
                   int64_t stage, const Terminal& terminal) {
  const costmodel::Schedule schedule =
      ScheduleOf(result.model, result.execution);
  std::string text = fmt::format(
      "{}, {} blocks, {:.4g} microbatches in flight, without recomputation\n\n",
      terminal.Bold(graph::OneLine(profile.model.name)),
      FormatCount(static_cast<int64_t>(StageBlocks(schedule, stage))),
      StageMicrobatches(schedule, stage));
  const graph::Measured& measured = profile.measured;
  const graph::Module& root = profile.modules.front();
  using enum Table::Align;
  Table table({kLeft, kRight});
  const auto add = [&](const std::string& name, int64_t bytes) {
    table.AddRow({name, graph::FormatBytes(bytes)});
  };
  add("peak", *measured.peak_bytes);
  add("  weights", *measured.param_bytes);
  add("  gradients", *measured.grad_bytes);
  add("  optimizer state", *measured.optimizer_bytes);
  add("  activations", root.act_total);
  add("  working space, activation gradients", root.act_grad_per_module);
  table.AddRow({"forward, of a batch", FormatMs(root.fw_runtime_per_module)});
  table.AddRow({"backward, of a batch", FormatMs(root.bw_runtime_per_module)});
  return text + table.ToString(terminal);
}

int RunLlmProfile(const LlmProfileFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    CheckResultOutput(
        flags.output, {".json", ".json.gz"},
        {flags.strategy.application, StrategyFile(flags.strategy.execution),
         flags.strategy.system});
  }
  // Memory may be exceeded: that is what plans are for.
  const LlmResult result =
      ReadPlanQuestion(flags.strategy, flags.mode.Resolve(), "", terminal);
  if (!result.evaluation.verdict.Fits())
    return ReportInfeasible(result, terminal);
  const int64_t stages = StagesWithBlocks(result.model, result.execution);
  const int64_t stage = ParseWhole(flags.stage, "--stage", 0, stages - 1);
  graph::Profile profile = StageProfile(
      result.model, result.system, result.execution, result.corrections, stage);
  profile.model.name =
      fmt::format("{}, stage {} of {}", FileStem(flags.strategy.application),
                  stage, result.execution.pipeline_par);
  profile.device.name = FileStem(flags.strategy.system);
  const std::string json = graph::ProfileToJson(profile);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(flags.json ? json : ToText(profile, result, stage, terminal));
  return kExitOk;
}

}  // namespace

Command AddLlmProfileCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmProfileFlags>();
  CLI::App* app = program.add_subcommand(
      "llm-profile",
      "The profile of a pipeline stage of a strategy, for the planner");
  flags->strategy.AddTo(*app, kPlannedExecutionHelp);
  app->add_option("--stage", flags->stage,
                  "of the pipeline, counted from 0 (default), which holds most")
      ->type_name("S");
  app->add_flag("--json", flags->json, "print the profile, nothing else");
  app->add_option("-o,--output", flags->output,
                  "write the profile here (.json or .json.gz)")
      ->type_name("FILE");
  flags->mode.AddTo(*app);
  app->footer(
      "Example:\n  acplan llm-profile data/models/gpt3-175B.json "
      "data/validation/seqsel/tab5/gpt3-175B_seqsel.json "
      "data/systems/a100_80g.json\n"
      "Of the strategy all counts but activation_recompute and "
      "seq_par_ag_redo.\n"
      "Exit status: 0 profiled, 2 bad input, 3 infeasible.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmProfile(*flags, terminal);
          }};
}

}  // namespace acplan::cli
