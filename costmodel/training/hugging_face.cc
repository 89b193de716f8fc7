#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>

#include "costmodel/training/model_shape.h"
#include "graph/base/file_io.h"
#include "graph/base/json_fields.h"
#include "graph/base/message_text.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

constexpr int64_t kMostSize = INT32_MAX;

constexpr std::array<std::string_view, 20> kHuggingFaceTypes = {
    "bloom",  "deepseek_v2", "deepseek_v3", "gemma",    "gemma2",
    "gemma3", "gemma3_text", "gpt2",        "gpt_neox", "gpt_oss",
    "llama",  "mistral",     "mixtral",     "mpt",      "nemotron",
    "olmo2",  "phi3",        "qwen2",       "qwen3",    "qwen3_moe"};

int64_t Size(const JsonField& config, std::string_view key) {
  return config.Get(key).Int(1, kMostSize);
}

int64_t SizeOr(const JsonField& config, std::string_view key,
               int64_t fallback) {
  return config.Has(key) ? config.Get(key).Int(0, kMostSize) : fallback;
}

bool FlagOr(const JsonField& config, std::string_view key, bool fallback) {
  return config.Has(key) ? config.Get(key).Bool() : fallback;
}

// The first of these keys that the configuration has; complains of the first.
int64_t SizeOfAny(const JsonField& config,
                  std::initializer_list<std::string_view> keys) {
  for (const std::string_view key : keys) {
    if (config.Has(key)) return Size(config, key);
  }
  return Size(config, *keys.begin());
}

// GPT-2, BLOOM, GPT-NeoX and MPT: LayerNorm, biases, a plain GELU.
ModelShape ParsePlain(const JsonField& config, std::string_view type) {
  ModelShape shape{
      .layers = SizeOfAny(config, {"n_layer", "num_hidden_layers", "n_layers"}),
      .hidden =
          SizeOfAny(config, {"n_embd", "hidden_size", "d_model", "n_embed"}),
      .heads = SizeOfAny(config, {"n_head", "num_attention_heads", "n_heads"}),
      .vocabulary = Size(config, "vocab_size"),
      .has_biases = !FlagOr(config, "no_bias", false),
      .has_layer_norm = true,
      .is_tied = FlagOr(config, "tie_word_embeddings", type != "gpt_neox")};
  shape.kv_heads = shape.heads;
  shape.head_dim = shape.hidden / shape.heads;
  shape.feedforward = 4 * shape.hidden;
  // The others have no key for it: what a configuration says there is ignored.
  const std::string_view key = type == "gpt2"       ? "n_inner"
                               : type == "gpt_neox" ? "intermediate_size"
                                                    : "";
  if (config.Has(key)) shape.feedforward = Size(config, key);
  if (type == "mpt" && config.Has("expansion_ratio")) {
    shape.feedforward = Size(config, "expansion_ratio") * shape.hidden;
  }
  shape.has_rope = type == "gpt_neox";
  if (type == "gpt2") {
    shape.learned_positions =
        SizeOfAny(config, {"n_positions", "max_position_embeddings"});
  }
  const bool has_alibi = config.Has("attn_config") &&
                         FlagOr(config.Get("attn_config"), "alibi", false);
  if (type == "mpt" && !has_alibi) {
    shape.learned_positions = SizeOr(config, "max_seq_len", 0);
  }
  return shape;
}

void RefuseSparseSteps(const JsonField& config) {
  if (SizeOr(config, "decoder_sparse_step", 1) != 1) {
    config.Get("decoder_sparse_step")
        .Fail("1: experts in every layer but the first ones");
  }
}

ModelShape WithExperts(ModelShape shape, const JsonField& config,
                       std::string_view type) {
  const bool is_deepseek = type.starts_with("deepseek");
  shape.experts = SizeOfAny(
      config, is_deepseek
                  ? std::initializer_list<std::string_view>{"n_routed_experts"}
                  : std::initializer_list<std::string_view>{"num_local_experts",
                                                            "num_experts"});
  shape.top_k = SizeOfAny(config, {"num_experts_per_tok", "experts_per_token"});
  shape.expert_feedforward =
      SizeOr(config, "moe_intermediate_size", shape.feedforward);
  shape.dense_layers = SizeOr(config, "first_k_dense_replace", 0);
  shape.shared_feedforward =
      SizeOr(config, "n_shared_experts", 0) * shape.expert_feedforward;
  const int64_t groups = SizeOr(config, "n_group", 1);
  shape.routed_groups = groups > 1 ? SizeOr(config, "topk_group", 0) : 0;
  shape.mtp_layers = SizeOr(config, "num_nextn_predict_layers", 0);
  if (type == "qwen3_moe") RefuseSparseSteps(config);
  return shape;
}

ModelShape WithLatentAttention(ModelShape shape, const JsonField& config) {
  shape.q_rank = SizeOr(config, "q_lora_rank", 0);
  shape.kv_rank = Size(config, "kv_lora_rank");
  shape.qk_nope = Size(config, "qk_nope_head_dim");
  shape.qk_rope = Size(config, "qk_rope_head_dim");
  shape.v_dim = Size(config, "v_head_dim");
  shape.head_dim = shape.QueryDim();
  return shape;
}

// Layers that attend to a window, and how often one does not.
ModelShape WithWindow(ModelShape shape, const JsonField& config,
                      std::string_view type) {
  const bool alternates = type.starts_with("gemma") || type == "gpt_oss";
  if (!alternates && !FlagOr(config, "use_sliding_window", type == "mistral")) {
    return shape;
  }
  shape.sliding_window = SizeOr(config, "sliding_window", 0);
  if (type == "gemma2" || type == "gpt_oss") shape.full_every = 2;
  if (type.starts_with("gemma3")) {
    shape.full_every = SizeOr(config, "sliding_window_pattern", 6);
  }
  return shape;
}

// Llama and what follows it: RMSNorm, rotation, gated feed-forward.
ModelShape ParseLlamaLike(const JsonField& config, std::string_view type) {
  ModelShape shape{.layers = Size(config, "num_hidden_layers"),
                   .hidden = Size(config, "hidden_size"),
                   .heads = Size(config, "num_attention_heads"),
                   .feedforward = Size(config, "intermediate_size"),
                   .vocabulary = Size(config, "vocab_size"),
                   .is_gated = type != "nemotron",
                   .has_layer_norm = type == "nemotron",
                   .has_rope = true};
  shape.kv_heads = SizeOr(config, "num_key_value_heads", shape.heads);
  if (shape.kv_heads == 0) config.Get("num_key_value_heads").Fail("1 at least");
  shape.head_dim = SizeOr(config, "head_dim", shape.hidden / shape.heads);
  shape.is_tied =
      FlagOr(config, "tie_word_embeddings", type.starts_with("gemma"));
  shape.is_clamped = type == "gpt_oss";
  const bool has_experts = type.starts_with("deepseek") || type == "mixtral" ||
                           type == "gpt_oss" || type == "qwen3_moe";
  if (type.starts_with("deepseek")) {
    shape = WithLatentAttention(shape, config);
  }
  if (has_experts) shape = WithExperts(shape, config, type);
  return WithWindow(shape, config, type);
}

}  // namespace

ModelShape ParseHuggingFaceConfig(std::string_view text,
                                  std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  const JsonField root(document, std::string(file));
  const std::string type = root.Get("model_type").String();
  if (std::ranges::find(kHuggingFaceTypes, type) == kHuggingFaceTypes.end()) {
    root.Get("model_type")
        .Fail(fmt::format(
            "one of {} (another decoder with RMSNorm and a gated feed-forward "
            "may be written as llama: hidden_size, num_hidden_layers, "
            "num_attention_heads, num_key_value_heads, head_dim, "
            "intermediate_size, vocab_size, tie_word_embeddings)",
            fmt::join(kHuggingFaceTypes, ", ")));
  }
  const JsonField config =
      root.Has("text_config") ? root.Get("text_config") : root;
  const bool is_plain =
      type == "gpt2" || type == "bloom" || type == "gpt_neox" || type == "mpt";
  ModelShape shape =
      is_plain ? ParsePlain(config, type) : ParseLlamaLike(config, type);
  shape.form = ModuleFormOf(type);
  shape.has_query_bias = type == "qwen2";
  CheckShape(shape, file);
  return shape;
}

ModelShape ReadHuggingFaceConfig(const std::filesystem::path& path) {
  return ParseHuggingFaceConfig(graph::ReadFile(path), path.string());
}

}  // namespace acplan::costmodel
