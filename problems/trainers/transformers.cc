#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// transformers: gradient checkpointing of its layers, all or none.

namespace acplan::problems {
namespace {

std::string WriteTransformers(const TrainerPolicy& policy, const ConfigNames&) {
  const std::string call =
      "from transformers import TrainingArguments\n\n"
      "args = TrainingArguments(\n";
  if (policy.blocks.kind == BlockKind::kNone) {
    return call + "    gradient_checkpointing=False,\n)\n";
  }
  return call +
         "    gradient_checkpointing=True,\n"
         "    gradient_checkpointing_kwargs={\"use_reentrant\": False},\n)\n";
}

TrainerPolicy ReadTransformers(const ConfigText& text, const ConfigNames&) {
  return text.IsTrue("gradient_checkpointing") ? WholeBlocks()
                                               : TrainerPolicy();
}

}  // namespace

Trainer TransformersTrainer() {
  return {.name = "transformers",
          .version = "transformers 5.23.0",
          .place = "the training script",
          .language = {},
          .write = WriteTransformers,
          .read = ReadTransformers};
}

}  // namespace acplan::problems
