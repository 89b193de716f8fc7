#include <fmt/format.h>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// Lightning: the modules of a set of classes, by the strategy of FSDP.

namespace acplan::problems {
namespace {

constexpr std::string_view kPolicyKey = "activation_checkpointing_policy";

std::string WriteLightning(const TrainerPolicy& policy, const ConfigNames&) {
  const std::string text =
      "from lightning.pytorch.strategies import FSDPStrategy\n\n";
  if (policy.blocks.kind == BlockKind::kNone) {
    return text + "strategy = FSDPStrategy()\n";
  }
  return text + fmt::format(
                    "# import {0} from where the model defines {1}\n"
                    "strategy = FSDPStrategy({2}={{{0}}})\n",
                    fmt::join(policy.blocks.classes, ", "),
                    policy.blocks.classes.size() == 1 ? "it" : "them",
                    kPolicyKey);
}

ConfigReading ReadLightning(const Config& config, const ConfigNames& names) {
  // The key of lightning before 2.2.
  if (config.IsOn("activation_checkpointing")) {
    return {.policy = {.blocks = ReadClasses(config, "activation_checkpointing",
                                             names)}};
  }
  if (!config.IsOn(kPolicyKey)) return {};
  return {.policy = {.blocks = ReadClasses(config, kPolicyKey, names)}};
}

bool IsLikeLightning(const Config& config) {
  return config.Has(kPolicyKey) || config.Mentions("lightning") ||
         config.Mentions("pytorch_lightning");
}

}  // namespace

Trainer LightningTrainer() {
  return {.name = "lightning",
          .version = "lightning 2.6.6",
          .place = "the training script",
          .language = {.blocks = {BlockKind::kClasses}},
          .format = ConfigFormat::kPython,
          .write = WriteLightning,
          .read = ReadLightning,
          .is_like = IsLikeLightning};
}

}  // namespace acplan::problems
