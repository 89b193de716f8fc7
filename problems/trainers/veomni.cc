#include <algorithm>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// VeOmni: gradient checkpointing of the layers of transformers' models, all or none, on by
// default. Ranges of layers are those of an open pull request, whose keys no release has.

namespace acplan::problems {
namespace {

constexpr std::string_view kTable = "train.gradient_checkpointing";

std::string WriteVeOmni(const TrainerPolicy& policy, const ConfigNames&) {
  const std::string text = "train:\n  gradient_checkpointing:\n";
  if (policy.blocks.kind == BlockKind::kNone) {
    return text + "    enable: false\n";
  }
  return text +
         "    enable: true\n"
         "    enable_reentrant: false\n"
         "    early_stop: true\n";
}

ConfigReading ReadVeOmni(const Config& config, const ConfigNames&) {
  const std::string key(kTable);
  for (const char* name :
       {"gradient_checkpoint_layers", "selective", "selective_ops",
        "selective_gradient_checkpoint_layers"}) {
    if (!config.Has(key + "." + name)) continue;
    config.Fail(key,
                "keys of VeOmni as it is, as layer ranges and selective "
                "checkpoints are those of an open pull request",
                name);
  }
  RefuseOtherKeys(config, key,
                  {"debug", "early_stop", "enable", "enable_reentrant"});
  ConfigReading reading;
  NoteCompile(config, {"train.torch_compile.enable"}, reading);
  const std::string offload = "train.accelerator.offload_config.";
  for (const char* name : {"enable_activation", "enable_async_activation"}) {
    if (!config.IsTrue(offload + name)) continue;
    reading.notes.push_back(
        offload + name +
        ": what is kept goes to the host, which is not simulated: the peak is "
        "lower than below");
  }
  // The key of the first releases.
  const bool is_on =
      config.IsTrue(key + ".enable",
                    config.IsTrue("train.enable_gradient_checkpointing", true));
  if (!is_on) return reading;
  reading.policy = WholeBlocks();
  reading.policy.stops_early = config.IsTrue(key + ".early_stop", true);
  if (config.IsTrue(key + ".enable_reentrant")) SetReentrant(reading);
  return reading;
}

bool IsLikeVeOmni(const Config& config) {
  return !config.IsPython() &&
         (config.Has(kTable) || config.Has("train.accelerator") ||
          config.Has("train.enable_gradient_checkpointing"));
}

}  // namespace

Trainer VeOmniTrainer() {
  return {.name = "veomni",
          .version = "VeOmni at commit d9774494",
          .place = "the YAML configuration",
          .language = {},
          .format = ConfigFormat::kYaml,
          .write = WriteVeOmni,
          .read = ReadVeOmni,
          .is_like = IsLikeVeOmni};
}

}  // namespace acplan::problems
