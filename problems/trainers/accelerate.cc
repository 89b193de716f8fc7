#include <fmt/format.h>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// accelerate: with FSDP2, the modules of the classes that it wraps, all or none.

namespace acplan::problems {
namespace {

constexpr std::string_view kClassesKey = "fsdp_transformer_layer_cls_to_wrap";

std::string WriteAccelerate(const TrainerPolicy& policy, const ConfigNames&) {
  const std::string text =
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n";
  if (policy.blocks.kind == BlockKind::kNone) {
    return text + "  fsdp_activation_checkpointing: false\n";
  }
  return text + fmt::format(
                    "  fsdp_activation_checkpointing: true\n"
                    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                    "  {}: {}\n",
                    kClassesKey, fmt::join(policy.blocks.classes, ","));
}

TrainerPolicy ReadAccelerate(const ConfigText& text, const ConfigNames& names) {
  if (!text.IsTrue("fsdp_activation_checkpointing")) return {};
  return {.blocks = ReadClasses(text, kClassesKey, names)};
}

}  // namespace

Trainer AccelerateTrainer() {
  return {.name = "accelerate",
          .version = "accelerate 1.15.0",
          .place = "the YAML file of accelerate config",
          .language = {.blocks = {BlockKind::kClasses}},
          .write = WriteAccelerate,
          .read = ReadAccelerate};
}

}  // namespace acplan::problems
