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

ConfigReading ReadTrl(const Config& config, const ConfigNames& names) {
  ConfigReading reading = ReadLayerCheckpoints(config, true);
  RefuseEveryNth(config, reading.policy);
  if (config.IsOn("activation_offloading")) {
    reading.notes.emplace_back(
        "activation_offloading: what is kept goes to the host, which is not "
        "simulated: the peak is lower than below");
  }
  NoteCompile(config, {"torch_compile"}, reading);
  const std::string_view selective =
      FirstOf(config, {"gradient_checkpointing_kwargs.selective",
                       "activation_checkpointing_kwargs.selective"});
  if (reading.policy.blocks.kind != BlockKind::kNone &&
      config.IsTrue(selective)) {
    reading.policy.saved = Matching(names, AttentionPatterns());
  }
  return reading;
}

bool IsLikeTrl(const Config& config) { return config.Mentions("trl"); }

}  // namespace

Trainer TrlTrainer() {
  return {.name = "trl",
          .version = "trl 1.16.0",
          .place = "the training script",
          .language = {.sets = {AttentionPatterns()}},
          .format = ConfigFormat::kPython,
          .write = WriteTrl,
          .read = ReadTrl,
          .is_like = IsLikeTrl};
}

}  // namespace acplan::problems
