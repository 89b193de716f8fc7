#include <fmt/format.h>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// transformers: gradient checkpointing of its layers: all, none, or with every_n_layers
// every n-th.

namespace acplan::problems {
namespace {

std::string WriteTransformers(const TrainerPolicy& policy, const ConfigNames&) {
  const std::string call =
      "from transformers import TrainingArguments\n\n"
      "args = TrainingArguments(\n";
  if (policy.blocks.kind == BlockKind::kNone) {
    return call + "    gradient_checkpointing=False,\n)\n";
  }
  const std::string period =
      policy.blocks.kind == BlockKind::kEvery
          ? fmt::format(", \"every_n_layers\": {}", policy.blocks.period)
          : "";
  return call +
         "    gradient_checkpointing=True,\n"
         "    gradient_checkpointing_kwargs={\"use_reentrant\": False" +
         period + "},\n)\n";
}

ConfigReading ReadTransformers(const Config& config, const ConfigNames&) {
  ConfigReading reading = ReadLayerCheckpoints(config, false);
  NoteCompile(config, {"torch_compile"}, reading);
  return reading;
}

bool IsLikeTransformers(const Config& config) {
  return config.Mentions("TrainingArguments") && !config.Mentions("trl");
}

}  // namespace

Trainer TransformersTrainer() {
  return {.name = "transformers",
          .version = "transformers 5.23.0",
          .place = "the training script",
          .language = {.blocks = {BlockKind::kAll, BlockKind::kEvery}},
          .format = ConfigFormat::kPython,
          .write = WriteTransformers,
          .read = ReadTransformers,
          .is_like = IsLikeTransformers};
}

}  // namespace acplan::problems
