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

TrainerPolicy ReadLightning(const ConfigText& text, const ConfigNames& names) {
  if (!text.Mentions(kPolicyKey)) return {};
  return {.blocks = ReadClasses(text, kPolicyKey, names)};
}

}  // namespace

Trainer LightningTrainer() {
  return {.name = "lightning",
          .version = "lightning 2.6.6",
          .place = "the training script",
          .language = {.blocks = {BlockKind::kClasses}},
          .write = WriteLightning,
          .read = ReadLightning};
}

}  // namespace acplan::problems
