#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// trl: transformers' gradient checkpointing, which is on by default; `selective` saves the
// attention operators.

namespace acplan::problems {
namespace {

std::string WriteTrl(const TrainerPolicy& policy, const ConfigNames&) {
  const std::string call = "from trl import SFTConfig\n\nargs = SFTConfig(\n";
  if (policy.blocks.kind == BlockKind::kNone) {
    return call + "    gradient_checkpointing=False,\n)\n";
  }
  const std::string selective =
      policy.saved.empty() ? "" : ", \"selective\": True";
  return call +
         "    gradient_checkpointing=True,\n"
         "    gradient_checkpointing_kwargs={\"use_reentrant\": False" +
         selective + "},\n)\n";
}

TrainerPolicy ReadTrl(const ConfigText& text, const ConfigNames& names) {
  if (!text.IsTrue("gradient_checkpointing", true)) return {};
  TrainerPolicy policy = WholeBlocks();
  if (text.IsTrue("selective")) {
    policy.saved = Matching(names, AttentionPatterns());
  }
  return policy;
}

}  // namespace

Trainer TrlTrainer() {
  return {.name = "trl",
          .version = "trl 1.16.0",
          .place = "the training script",
          .language = {.sets = {AttentionPatterns()}},
          .write = WriteTrl,
          .read = ReadTrl};
}

}  // namespace acplan::problems
