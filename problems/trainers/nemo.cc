#include <algorithm>
#include <cctype>

#include "problems/trainers/names.h"
#include "problems/trainers/trainer.h"

// NeMo AutoModel: whole layers of transformers' models, or with "selective" a fixed list of
// operators that they save, of products only every second one.

namespace acplan::problems {
namespace {

// PyTorch's compute-intensive operators and NeMo's own; operators of its extensions are
// left out.
std::vector<std::string> SavedPatterns() {
  return {"_c10d_functional.all_to_all_single.default",
          "_c10d_functional.reduce_scatter_tensor.default",
          "aten._efficient_attention_forward.default",
          "aten._flash_attention_forward.default",
          "aten._flex_attention.default",
          "aten._grouped_mm.default",
          "aten._scaled_dot_product_cudnn_attention.default",
          "aten._scaled_dot_product_efficient_attention.default",
          "aten._scaled_dot_product_flash_attention.default",
          "aten._scaled_dot_product_flash_attention_for_cpu.default",
          "aten._scaled_dot_product_fused_attention_overrideable.default",
          "aten._scaled_grouped_mm.default",
          "aten._scaled_mm.default",
          "aten.addmm.default",
          "aten.bmm.default",
          "aten.convolution.default",
          "aten.convolution_backward.default",
          "aten.linear.default",
          "aten.max.default",
          "aten.mm.default",
          "aten.topk.default",
          "aten.upsample_bilinear2d.default"};
}

Language NemoLanguage() {
  return {
      .sets = {SavedPatterns()}, .product_period = 2, .counts_grouped = true};
}

std::string WriteNemo(const TrainerPolicy& policy, const ConfigNames&) {
  const std::string text = "distributed:\n  activation_checkpointing: ";
  if (policy.blocks.kind == BlockKind::kNone) return text + "false\n";
  return text + (policy.saved.empty() ? "full\n" : "selective\n");
}

// Returns a value in lower case, with _ for -.
std::string Plain(std::string text) {
  for (char& c : text) {
    c = c == '-'
            ? '_'
            : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

// Refuses strategies whose checkpoints are not those of FSDP2's: with several ranks DDP has
// each layer's attention, feed-forward part and norms as units of their own, and
// Megatron-FSDP has none.
void RequireWholeLayers(const Config& config, const std::string& table,
                        bool is_selective) {
  const std::string path = table + ".strategy";
  const std::string strategy = Plain(config.Text(path).value_or("fsdp2"));
  if (strategy == "fsdp2" || (strategy == "ddp" && is_selective)) return;
  if (strategy == "ddp") {
    config.Fail(path,
                "fsdp2, or selective checkpoints, as on several ranks DDP has "
                "parts of layers as units",
                strategy);
  }
  if (strategy == "megatron_fsdp") {
    config.Fail(path,
                "fsdp2 or ddp, as Megatron-FSDP has no checkpoints on several "
                "ranks",
                strategy);
  }
  FailUnknownValue(config, path, strategy, {"ddp", "fsdp2", "megatron_fsdp"});
}

ConfigReading ReadNemo(const Config& config, const ConfigNames& names) {
  const std::string key(
      FirstOf(config, {"distributed.activation_checkpointing",
                       "distributed_config.activation_checkpointing"}));
  ConfigReading reading;
  const std::string scope = Plain(config.Text(key + "_scope").value_or("all"));
  if (scope != "all") {
    config.Fail(key + "_scope", "all, as parts of models are not told apart");
  }
  const std::string mode = Plain(config.Text(key).value_or("false"));
  if (mode == "false" || mode == "none") return reading;
  RequireWholeLayers(config, key.substr(0, key.find('.')), mode == "selective");
  NoteCompile(config, {"compile.enabled", "distributed.enable_compile"},
              reading);
  reading.policy = NemoLanguage().Saving({.kind = BlockKind::kAll});
  if (mode == "selective") {
    reading.policy.saved = Matching(names, SavedPatterns());
  } else if (mode != "true" && mode != "full") {
    FailUnknownValue(config, key, mode, {"false", "full", "selective", "true"});
  }
  return reading;
}

bool IsLikeNemo(const Config& config) {
  return !config.IsPython() &&
         (config.Has("step_scheduler") ||
          config.Has("distributed.activation_checkpointing") ||
          config.Has("distributed_config.activation_checkpointing"));
}

}  // namespace

Trainer NemoTrainer() {
  return {.name = "nemo",
          .version = "nemo-automodel 0.7.0",
          .place = "the recipe's YAML file",
          .language = NemoLanguage(),
          .format = ConfigFormat::kYaml,
          .write = WriteNemo,
          .read = ReadNemo,
          .is_like = IsLikeNemo};
}

}  // namespace acplan::problems
