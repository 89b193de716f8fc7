// A configuration gives sizes under keys of many names, and its model_type implies the rest
// (model_types.h). The layers that have experts, and those that attend to a window, are
// listed in some files and follow from a rule in others; both become a list here.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <string>
#include <utility>

#include "costmodel/training/model/config_keys.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/model/model_types.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;
using LayerFlags = std::vector<bool>;

bool IsPlain(std::string_view type) {
  return type == "gpt2" || type == "bloom" || type == "gpt_neox" ||
         type == "mpt";
}

// Parses GPT-2, BLOOM, GPT-NeoX and MPT: LayerNorm, biases, a plain GELU.
ModelShape ParsePlain(ConfigKeys& config, std::string_view type) {
  ModelShape shape{
      .layers = config.Size({"n_layer", "num_hidden_layers", "n_layers"}),
      .hidden = config.Size({"n_embd", "hidden_size", "d_model", "n_embed"}),
      .heads = config.Size({"n_head", "num_attention_heads", "n_heads"}),
      .vocabulary = config.Size({"vocab_size"}),
      .norm_weights = NormWeights::kScaleAndBias,
      .is_tied = config.Flag("tie_word_embeddings", type != "gpt_neox")};
  const bool has_biases = !config.Flag("no_bias", false);
  shape.SetBiases(has_biases);
  if (type == "mpt" && !has_biases) shape.norm_weights = NormWeights::kScale;
  if (type == "gpt_neox") {
    shape.has_query_bias = shape.has_output_bias =
        config.Flag("attention_bias", true);
  }
  shape.kv_heads = shape.heads;
  shape.head_dim = shape.hidden / shape.heads;
  shape.feedforward = 4 * shape.hidden;
  // The other types have no key for it: the configuration's value is ignored.
  if (type == "gpt2")
    shape.feedforward = config.SizeOr({"n_inner"}, shape.feedforward);
  if (type == "gpt_neox")
    shape.feedforward = config.SizeOr({"intermediate_size"}, shape.feedforward);
  if (type == "mpt") {
    shape.feedforward = config.SizeOr({"expansion_ratio"}, 4) * shape.hidden;
  }
  shape.has_rope = type == "gpt_neox";
  if (type == "gpt2") {
    shape.learned_positions =
        config.Size({"n_positions", "max_position_embeddings", "n_ctx"});
  }
  const std::optional<JsonField> attention = config.Find({"attn_config"});
  const bool has_alibi =
      attention && attention->Has("alibi") && attention->Get("alibi").Bool();
  if (type == "mpt" && !has_alibi) {
    shape.learned_positions = config.SizeOr({"max_seq_len"}, 0);
  }
  return shape;
}

void Refuse(LayerFlags& flags, const std::vector<int64_t>& layers) {
  for (const int64_t layer : layers) {
    if (layer < static_cast<int64_t>(flags.size())) flags[layer] = false;
  }
}

// Parses a list of "dense" and "sparse", or of 0 and 1, for the layers.
std::optional<LayerFlags> ListedMoeLayers(ConfigKeys& config, int64_t layers) {
  const std::optional<JsonField> list =
      config.Find({"mlp_layer_types", "moe_layer_freq", "is_moe_layer"});
  if (!list || !list->json().is_array()) return {};
  LayerFlags flags;
  for (const JsonField& element : list->Elements()) {
    if (element.json().is_boolean()) {
      flags.push_back(element.Bool());
    } else {
      flags.push_back(element.json().is_string() ? element.String() != "dense"
                                                 : element.Int(0, 1) == 1);
    }
  }
  if (static_cast<int64_t>(flags.size()) < layers) {
    list->Fail(fmt::format("a list of {} layers", layers));
  }
  flags.resize(static_cast<size_t>(layers));
  return flags;
}

// Keeps experts only in one of every `step` layers: the last one (decoder_sparse_step and
// others), or the first (moe_layer_freq).
void KeepEvery(LayerFlags& flags, int64_t step, bool is_last) {
  for (size_t i = 0; i < flags.size(); ++i) {
    const auto position = static_cast<int64_t>(i) + (is_last ? 1 : 0);
    if (position % step != 0) flags[i] = false;
  }
}

LayerFlags MoeLayers(ConfigKeys& config, int64_t layers) {
  if (auto listed = ListedMoeLayers(config, layers)) return *listed;
  LayerFlags flags(static_cast<size_t>(layers), true);
  const auto expert_layers = config.Numbers("moe_layers");
  if (!expert_layers.empty()) {
    std::fill(flags.begin(), flags.end(), false);
    for (const int64_t layer : expert_layers) {
      if (layer < layers) flags[layer] = true;
    }
    config.Find({"interleave_moe_layer_step"});
    return flags;
  }
  const auto every = [&](std::string_view key, bool is_last) {
    if (const auto step = config.Find({key})) {
      KeepEvery(flags, step->Int(1, INT32_MAX), is_last);
    }
  };
  every("moe_layer_freq", false);
  every("decoder_sparse_step", true);
  every("interleave_moe_layer_step", true);
  every("moe_layer_interval", true);
  const int64_t first =
      std::max(config.SizeOr({"first_k_dense_replace", "num_dense_layers"}, 0),
               config.SizeOr({"moe_layer_start_index"}, 0));
  std::fill_n(flags.begin(), std::min(first, layers), false);
  const auto last = config.Find({"moe_layer_end_index"});
  const int64_t end = last ? last->Int(-1, INT32_MAX) : -1;
  if (end >= 0 && end < layers)
    std::fill(flags.begin() + end + 1, flags.end(), false);
  Refuse(flags, config.Numbers("mlp_only_layers"));
  return flags;
}

// Sets the layers with experts. A model without any such layer has no experts.
ModelShape WithMoeLayers(ModelShape shape, const LayerFlags& flags) {
  shape.dense_layers = std::count(flags.begin(), flags.end(), false);
  if (shape.dense_layers == shape.layers) {
    shape.experts = 0;
    shape.dense_layers = 0;
    return shape;
  }
  const auto first = std::find(flags.begin(), flags.end(), true);
  if (std::find(first, flags.end(), false) != flags.end()) {
    shape.moe_pattern = flags;
  }
  return shape;
}

int64_t SharedWidth(const ModelShape& shape, ConfigKeys& config,
                    const ModelType& type) {
  switch (type.shared) {
    case SharedExperts::kByCount:
      return shape.expert_feedforward *
             config.SizeOr({"n_shared_experts", "moe_num_shared_experts",
                            "num_shared_experts"},
                           0);
    case SharedExperts::kByWidth:
      return config.SizeOr(
          {"shared_expert_intermediate_size", "shared_intermediate_size"}, 0);
    case SharedExperts::kOneExpert:
      return shape.expert_feedforward;
  }
  return 0;
}

ModelShape WithExperts(ModelShape shape, ConfigKeys& config,
                       const ModelType& type) {
  const KeyNames experts = {"num_local_experts", "num_experts",
                            "n_routed_experts", "moe_num_experts"};
  shape.experts = config.SizeOr(experts, 0);
  if (shape.experts == 0 && !type.other_layers.empty()) {
    config.Find({"num_experts_per_tok"});
    shape.feedforward = config.Size({"shared_intermediate_size"});
    return shape;
  }
  if (shape.experts == 0) {
    // Fails with the name that most files of this kind have.
    config.Size({type.is_latent ? "n_routed_experts" : "num_local_experts"});
  }
  shape.top_k = config.Size({"num_experts_per_tok", "experts_per_token",
                             "num_experts_per_token", "moe_topk", "moe_k"});
  shape.expert_feedforward =
      config.SizeOr({"moe_intermediate_size"}, shape.feedforward);
  if (type.shared == SharedExperts::kOneExpert) {
    shape.expert_feedforward = shape.feedforward;
    shape.feedforward = config.Size({"intermediate_size_mlp"});
  }
  shape.shared_feedforward = SharedWidth(shape, config, type);
  const int64_t groups = config.SizeOr({"n_group"}, 1);
  const int64_t chosen_groups = config.SizeOr({"topk_group"}, 0);
  shape.routed_groups = groups > 1 ? chosen_groups : 0;
  if (type.has_shared_gate) shape.moe_vectors += shape.hidden;
  if (type.has_route_bias) shape.moe_vectors += shape.experts;
  shape.has_expert_bias = type.has_expert_bias;
  shape.mtp_layers =
      config.SizeOr({"num_nextn_predict_layers", "num_mtp_layers"}, 0);
  return WithMoeLayers(std::move(shape), MoeLayers(config, shape.layers));
}

ModelShape WithLatentAttention(ModelShape shape, ConfigKeys& config) {
  shape.q_rank = config.SizeOr({"q_lora_rank"}, 0);
  shape.kv_rank = config.Size({"kv_lora_rank"});
  shape.qk_nope = config.Size({"qk_nope_head_dim"});
  shape.qk_rope = config.Size({"qk_rope_head_dim"});
  shape.v_dim = config.Size({"v_head_dim"});
  shape.head_dim = shape.QueryDim();
  return shape;
}

// Returns the number of layers that attend to everything, if the configuration lists the
// layers.
std::optional<int64_t> ListedFullLayers(ConfigKeys& config, int64_t layers) {
  for (const int64_t kind : config.Numbers("attn_type_list")) {
    if (kind != 1)
      config.config().Get("attn_type_list").Fail("1 for each layer");
  }
  const std::optional<JsonField> list = config.Find({"layer_types"});
  if (!list) return {};
  const std::vector<JsonField> kinds = list->Elements();
  if (static_cast<int64_t>(kinds.size()) < layers) {
    list->Fail(fmt::format("a list of {} layers", layers));
  }
  int64_t full = 0;
  for (int64_t i = 0; i < layers; ++i) {
    const std::string kind = kinds[i].String();
    if (kind == "full_attention" || kind == "attention") {
      ++full;
    } else if (kind != "sliding_attention" && kind != "chunked_attention") {
      kinds[i].Fail(
          "full_attention, sliding_attention or chunked_attention, as acplan "
          "does not model other kinds of layers");
    }
  }
  return full;
}

// Returns the number of layers without a window, for a repeating pattern: "LLLG" is three
// layers with a window and one without.
int64_t FullLayersOfLetters(const std::string& letters, int64_t layers) {
  int64_t full = 0;
  for (int64_t i = 0; i < layers && !letters.empty(); ++i) {
    if (letters[static_cast<size_t>(i) % letters.size()] != 'L') ++full;
  }
  return full;
}

int64_t FullLayersByRule(ConfigKeys& config, const ModelType& type,
                         int64_t layers) {
  if (type.windows == WindowRule::kFlag) {
    return std::min(layers, config.SizeOr({"max_window_layers"}, 0));
  }
  if (type.windows != WindowRule::kAlternate) return 0;
  // Layers that rotate have chunks.
  const std::vector<int64_t> rotates = config.Numbers("no_rope_layers");
  if (!rotates.empty()) {
    return std::min<int64_t>(layers,
                             std::count(rotates.begin(), rotates.end(), 0));
  }
  // Newer files have the pattern under a name that begins with an underscore.
  const auto pattern =
      config.Find({"sliding_window_pattern", "_sliding_window_pattern",
                   "no_rope_layer_interval"});
  if (pattern && pattern->json().is_string()) {
    return FullLayersOfLetters(pattern->String(), layers);
  }
  const int64_t every = pattern ? pattern->Int(0, INT32_MAX) : type.full_every;
  return every > 0 ? layers / every : 0;
}

ModelShape WithWindow(ModelShape shape, ConfigKeys& config,
                      const ModelType& type) {
  if (!type.other_layers.empty()) {
    config.config().Get("layer_types");  // fails if it is missing
    config.Ignore(type.other_layers);
  }
  const auto listed = ListedFullLayers(config, shape.layers);
  shape.sliding_window =
      config.SizeOr({"sliding_window", "attention_chunk_size"}, 0);
  shape.has_chunks = config.Has({"attention_chunk_size"});
  const bool is_used = config.Flag("use_sliding_window", true);
  const bool is_flagged = config.config().Has("use_sliding_window") && is_used;
  const int64_t by_rule = FullLayersByRule(config, type, shape.layers);
  const bool has_windows =
      listed || (type.windows != WindowRule::kNever &&
                 (type.windows != WindowRule::kFlag || is_flagged));
  if (!has_windows || !is_used) {
    shape.sliding_window = 0;
    return shape;
  }
  if (shape.sliding_window > 0) shape.full_layers = listed.value_or(by_rule);
  if (shape.full_layers == shape.layers) {
    shape.sliding_window = shape.full_layers = 0;
  }
  return shape;
}

bool IsOn(ConfigKeys& config, const ConfigSwitch& switched) {
  if (switched.key.empty()) return switched.otherwise;
  return config.Flag(switched.key, switched.otherwise);
}

ModelShape WithBiasesAndNorms(ModelShape shape, ConfigKeys& config,
                              const ModelType& type) {
  shape.has_query_bias = IsOn(config, type.query_bias);
  shape.has_output_bias = IsOn(config, type.output_bias);
  shape.has_feedforward_bias = IsOn(config, type.feedforward_bias);
  shape.has_logits_bias = IsOn(config, type.logits_bias);
  shape.norm_weights = type.norm_weights;
  shape.block_norms = type.block_norms;
  if (config.Flag("use_parallel_residual", false)) shape.block_norms = 1;
  if (type.qk_norm != QkNorm::kNone && IsOn(config, type.has_qk_norm)) {
    shape.form.qk_norm = type.qk_norm;
  }
  if (type.block_norms == 4) shape.form.norms = BlockNorms::kBoth;
  config.Flag("use_qk_norm", false);  // may have no weights (Llama 4)
  if (type.has_sinks) shape.layer_vectors += shape.heads;
  if (type.has_activation_weights) shape.layer_vectors += 2;
  if (!type.refused.empty() && config.Flag(type.refused, false)) {
    config.config()
        .Get(type.refused)
        .Fail("false, as acplan does not model it");
  }
  return shape;
}

// Parses Llama and the types that are derived from it.
ModelShape ParseLlamaLike(ConfigKeys& config, const ModelType& type) {
  ModelShape shape{.layers = config.Size({"num_hidden_layers"}),
                   .hidden = config.Size({"hidden_size"}),
                   .heads = config.Size({"num_attention_heads"}),
                   .vocabulary = config.Size({"vocab_size"}),
                   .is_gated = type.is_gated,
                   .has_rope = true,
                   .is_clamped = type.is_clamped};
  if (shape.layers > kMostLayers) return shape;  // CheckShape refuses it
  shape.feedforward = type.is_moe && config.Has({"moe_intermediate_size"})
                          ? config.SizeOr({"intermediate_size"}, 0)
                          : config.Size({"intermediate_size"});
  const auto kv_heads = config.Find({"num_key_value_heads"});
  shape.kv_heads = kv_heads ? kv_heads->Int(1, INT32_MAX) : shape.heads;
  // A default belongs to the default number of heads.
  if (!config.config().Has("num_key_value_heads") &&
      shape.heads % shape.kv_heads != 0) {
    shape.kv_heads = shape.heads;
  }
  shape.head_dim = config.SizeOr({"head_dim"}, shape.hidden / shape.heads);
  shape.is_tied = config.Flag("tie_word_embeddings", type.is_tied);
  shape.form = ModuleFormOf(type.name);
  shape = WithBiasesAndNorms(std::move(shape), config, type);
  if (type.is_latent) shape = WithLatentAttention(std::move(shape), config);
  if (type.is_moe) shape = WithExperts(std::move(shape), config, type);
  return WithWindow(std::move(shape), config, type);
}

ModelShape WithDropouts(ModelShape shape, ConfigKeys& config) {
  const KeyNames hidden = {"resid_pdrop", "hidden_dropout",
                           "hidden_dropout_prob", "residual_dropout",
                           "resid_dropout"};
  const bool is_told = config.Has(hidden);
  shape.hidden_dropout = config.Share(hidden);
  shape.attention_dropout =
      config.Share({"attn_pdrop", "attention_dropout",
                    "attention_probs_dropout_prob", "attn_dropout"});
  const KeyNames embedding = {"embd_pdrop", "embedding_dropout", "emb_pdrop"};
  const bool is_embedding_told = config.Has(embedding);
  shape.embedding_dropout =
      is_embedding_told ? config.Share(embedding) : shape.hidden_dropout;
  if (is_told && shape.hidden_dropout == 0) shape.form.dropout_masks = 0;
  if (is_embedding_told && shape.embedding_dropout == 0) {
    shape.form.has_embedding_dropout = false;
  }
  return shape;
}

[[noreturn]] void FailOfType(const JsonField& type, const JsonField& config) {
  const std::vector<std::string> foreign = ForeignKeys(config);
  if (!foreign.empty()) {
    type.Fail(fmt::format(
        "a type of which acplan models all parts, unlike those of {}",
        fmt::join(foreign, ", ")));
  }
  type.Fail(fmt::format(
      "one of {} (another decoder with RMSNorm and a gated feed-forward may be "
      "written as llama: hidden_size, num_hidden_layers, num_attention_heads, "
      "num_key_value_heads, head_dim, intermediate_size, vocab_size, "
      "tie_word_embeddings)",
      fmt::join(ModelTypeNames(), ", ")));
}

// Returns the text's part of a model of several parts, or nothing.
std::optional<JsonField> TextPart(const JsonField& root) {
  for (const std::string_view key :
       {"text_config", "language_config", "llm_config", "thinker_config"}) {
    if (root.Has(key) && root.Get(key).json().is_object()) {
      const JsonField part = root.Get(key);
      return TextPart(part).value_or(part);
    }
  }
  return {};
}

// Returns the type of a part. It may be implied by the whole's type (gemma3 has a
// gemma3_text).
const ModelType& TypeOf(const JsonField& root, const JsonField& config) {
  const JsonField owner = config.Has("model_type") ? config : root;
  const JsonField name = owner.Get("model_type");
  const ModelType* type = FindModelType(name.String());
  if (type == nullptr) FailOfType(name, config);
  return *type;
}

std::vector<std::string> PartNotes(const JsonField& root) {
  std::vector<std::string> parts;
  for (const auto& [key, value] : root.json().items()) {
    const bool is_text = key == "text_config" || key == "language_config" ||
                         key == "llm_config" || key == "thinker_config";
    if (value.is_object() && key.ends_with("_config") && !is_text &&
        key.find("quantization") == std::string::npos &&
        key.find("attn_config") == std::string::npos) {
      parts.push_back(graph::OneLine(key));
    }
  }
  if (parts.empty()) return {};
  return {fmt::format("the estimate covers the text model; {} {} not included",
                      fmt::join(parts, ", "), parts.size() > 1 ? "are" : "is")};
}

}  // namespace

ModelConfig ParseModelConfig(std::string_view text, std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  const JsonField root(document, std::string(file));
  const std::optional<JsonField> part = TextPart(root);
  const ModelType& type = TypeOf(root, part.value_or(root));
  ConfigKeys config(part.value_or(root), DefaultsOfType(type.name),
                    part.has_value());
  ModelConfig read;
  ModelShape& shape = read.shape;
  if (IsPlain(type.name)) {
    shape = ParsePlain(config, type.name);
    shape.form = ModuleFormOf(type.name);
  } else {
    shape = ParseLlamaLike(config, type);
  }
  // The whole's setting for the logits takes precedence, if it has one.
  if (part && root.Has("tie_word_embeddings")) {
    shape.is_tied = root.Get("tie_word_embeddings").Bool();
  }
  shape = WithDropouts(std::move(shape), config);
  CheckShape(shape, file);
  read.notes = PartNotes(root);
  std::vector<std::string> unused = config.UnusedKeys(type.is_moe);
  std::erase_if(
      unused, [](const std::string& key) { return key.ends_with("_config"); });
  if (!unused.empty()) {
    for (std::string& key : unused) key = graph::OneLine(key);
    read.notes.push_back(fmt::format("unused keys of the configuration: {}",
                                     fmt::join(unused, ", ")));
  }
  return read;
}

ModelShape ParseHuggingFaceConfig(std::string_view text,
                                  std::string_view file) {
  return ParseModelConfig(text, file).shape;
}

ModelShape ReadHuggingFaceConfig(const std::filesystem::path& path) {
  return ParseHuggingFaceConfig(graph::ReadJsonText(path), path.string());
}

}  // namespace acplan::costmodel
