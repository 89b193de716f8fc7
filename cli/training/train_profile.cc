#include <fmt/format.h>

#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/input/file_names.h"
#include "cli/input/flags.h"
#include "cli/input/output_files.h"
#include "cli/terminal/text.h"
#include "cli/training/strategy_text.h"
#include "cli/training/train_input.h"
#include "costmodel/profile/stage_profile.h"
#include "costmodel/training/strategy/pipeline_schedule.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/message_text.h"
#include "graph/profile/profile.h"

namespace acplan::cli {

namespace {

struct LlmProfileFlags {
  TrainFlags train;
  std::string output;
  std::string stage = "0";
  bool json = false;
};

std::string ToText(const graph::Profile& profile,
                   const costmodel::TrainingJob& job, size_t stage,
                   const Terminal& terminal) {
  std::string text = fmt::format(
      "{}\n{:.4g} microbatches in flight, without recomputation\n\n",
      terminal.Bold(graph::OneLine(profile.model.name)),
      costmodel::MicrobatchesInFlight(job.strategy, stage));
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
  add("  logits, working space, libraries", root.act_grad_per_module);
  table.AddRow({"forward, per batch", FormatMs(root.fw_runtime_per_module)});
  table.AddRow({"backward, per batch", FormatMs(root.bw_runtime_per_module)});
  return text + table.ToString(terminal);
}

int RunLlmProfile(const LlmProfileFlags& flags, const Terminal& terminal) {
  if (!flags.output.empty()) {
    RequireExtension(flags.output, {".json", ".json.gz"});
  }
  costmodel::StrategySettings settings = flags.train.ReadSettings();
  SetRecomputation("none", settings);
  const costmodel::TrainingJob job = costmodel::JobOfSettings(
      flags.train.ReadModel(terminal), settings, flags.train.ReadSystems());
  const auto stage = static_cast<size_t>(
      ParseWhole(flags.stage, "--stage", 0, job.strategy.pipeline - 1));
  graph::Profile profile = costmodel::StageProfile(job, stage);
  profile.model.name =
      fmt::format("{}, stage {} of {}: {}", FileStem(flags.train.config), stage,
                  job.strategy.pipeline, StrategyText(job.strategy));
  profile.device.name = job.cluster.gpu.name;
  const std::string json = graph::ProfileToJson(profile);
  if (!flags.output.empty()) graph::WriteFile(flags.output, json);
  terminal.Print(flags.json ? json
                            : BrokenLines(ToText(profile, job, stage, terminal),
                                          terminal));
  return kExitOk;
}

}  // namespace

Command AddTrainProfileCommand(CLI::App& program) {
  auto flags = std::make_shared<LlmProfileFlags>();
  CLI::App* app = program.add_subcommand(
      "profile", "Write the profile of a pipeline stage, for the planner");
  flags->train.AddTo(*app, true);
  app->add_option(
         "--stage", flags->stage,
         "pipeline stage, from 0 (default), which holds the most activations")
      ->type_name("S");
  app->add_flag("--json", flags->json, "print the profile and nothing else");
  AddOutput(*app, flags->output, "write the profile here (.json or .json.gz)");
  app->footer(
      "Example:\n  acplan train profile "
      "example:llama-3.1-70b --gpu H100 --gpus 64 --tp 8 "
      "--pp 4 --gbs 64 --seq 8192 -o stage.json\nRecomputation settings of the "
      "strategy are ignored.\nExit status: 0 profiled, 2 bad input.");
  return {app, [flags](const Terminal& terminal) {
            return RunLlmProfile(*flags, terminal);
          }};
}

}  // namespace acplan::cli
