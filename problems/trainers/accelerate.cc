#include <fmt/format.h>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// accelerate: with FSDP2, the modules of the classes that it wraps, all or none. Its
// checkpoints do not keep the random state.

namespace acplan::problems {
namespace {

std::string WriteAccelerate(const TrainerPolicy& policy, const ConfigNames&) {
  const std::string text =
      "distributed_type: FSDP\nfsdp_config:\n  fsdp_version: 2\n";
  if (policy.blocks.kind == BlockKind::kNone) {
    return text + "  fsdp_activation_checkpointing: false\n";
  }
  return text + fmt::format(
                    "  fsdp_activation_checkpointing: true\n"
                    "  fsdp_auto_wrap_policy: TRANSFORMER_BASED_WRAP\n"
                    "  fsdp_transformer_layer_cls_to_wrap: {}\n",
                    fmt::join(policy.blocks.classes, ","));
}

ConfigReading ReadAccelerate(const Config& config, const ConfigNames& names) {
  config.RequireTable("fsdp_config");
  if (!HasFsdpCheckpoints(config)) return {};
  const std::string_view path =
      FirstOf(config, {"fsdp_config.fsdp_transformer_layer_cls_to_wrap",
                       "fsdp_config.transformer_layer_cls_to_wrap",
                       "fsdp_transformer_layer_cls_to_wrap"});
  if (config.Has(path)) {
    return {.policy = {.blocks = ReadClasses(config, path, names)}};
  }
  return {.policy = {.blocks = {.kind = BlockKind::kClasses,
                                .classes = names.block_classes}},
          .notes = {fmt::format("no classes are named, so those of the blocks "
                                "are wrapped: {}",
                                fmt::join(names.block_classes, ", "))}};
}

// The file of accelerate config, or any with checkpoints by FSDP, which transformers and
// axolotl hand on to accelerate.
bool IsLikeAccelerate(const Config& config) {
  return config.Has("distributed_type") || config.Has("compute_environment") ||
         HasFsdpCheckpoints(config) ||
         config.Mentions("FullyShardedDataParallelPlugin");
}

}  // namespace

Trainer AccelerateTrainer() {
  return {
      .name = "accelerate",
      .version = "accelerate 1.15.0",
      .place = "the YAML file of accelerate config",
      .language = {.blocks = {BlockKind::kClasses}, .replays_random = false},
      .format = ConfigFormat::kYaml,
      .write = WriteAccelerate,
      .read = ReadAccelerate,
      .is_like = IsLikeAccelerate};
}

}  // namespace acplan::problems
