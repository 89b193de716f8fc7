// A configuration gives sizes under keys of many names, and its model_type implies the rest
// (model_types.h). layer_kinds.h, expert_layers.h and mixer_layers.h read what layers have.
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
#include "costmodel/training/model/encoder_decoder.h"
#include "costmodel/training/model/expert_layers.h"
#include "costmodel/training/model/known_keys.h"
#include "costmodel/training/model/layer_kinds.h"
#include "costmodel/training/model/mixer_layers.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/model/model_types.h"
#include "costmodel/training/model/tower_config.h"
#include "costmodel/training/model/tower_types.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"
#include "graph/base/message_text.h"
#include "graph/base/nearest_names.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

bool IsPlain(std::string_view type) {
  return type == "gpt2" || type == "bloom" || type == "gpt_neox" ||
         type == "mpt";
}

// Refuses an MPT whose shape transformers does not build.
void RequireModelledMpt(ConfigKeys& config) {
  const auto no_bias = config.Find({"no_bias"});
  if (no_bias && !no_bias->Bool()) no_bias->Fail("true");
  const auto ratio = config.Find({"expansion_ratio"});
  if (ratio && ratio->Int(1, INT32_MAX) != 4) ratio->Fail("4");
  const auto attention = config.Find({"attn_config"});
  if (attention && attention->Has("attn_type") &&
      attention->Get("attn_type").String() != "multihead_attention") {
    attention->Get("attn_type").Fail("multihead_attention");
  }
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
  const bool has_biases = type != "mpt";
  shape.SetBiases(has_biases);
  if (type == "mpt") shape.norm_weights = NormWeights::kScale;
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
  if (type == "mpt") RequireModelledMpt(config);
  shape.has_rope = type == "gpt_neox";
  if (type == "gpt2") {
    shape.learned_positions =
        config.Size({"n_positions", "max_position_embeddings", "n_ctx"});
  }
  const std::optional<JsonField> attention = config.Find({"attn_config"});
  // GPT-NeoX and BLOOM have these in any case.
  config.Flag("use_parallel_residual", true);
  const bool has_alibi =
      attention && attention->Has("alibi") && attention->Get("alibi").Bool();
  config.Supersede({"learned_pos_emb", "max_seq_len"});
  if (type == "mpt" && !has_alibi) {
    shape.learned_positions = config.SizeOr({"max_seq_len"}, 0);
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
  if (type.block_norms == 4) {
    shape.form.norms = BlockNorms::kBoth;
    if (!IsOn(config, type.has_outer_norms)) {
      shape.block_norms = 2;
      shape.form.norms = BlockNorms::kBefore;
    }
  }
  if (type.has_sub_norms) {
    shape.layer_vectors += shape.heads * shape.head_dim + shape.feedforward;
  }
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

// Returns the width of a feed-forward from a width that is yet to be adjusted: two thirds of
// it, times a factor, as a multiple of a number (LFM2).
int64_t AdjustedWidth(int64_t width, ConfigKeys& config) {
  const auto factor = config.Find({"block_ffn_dim_multiplier"});
  const int64_t multiple = config.SizeOr({"block_multiple_of"}, 256);
  if (!config.Flag("block_auto_adjust_ff_dim", false)) return width;
  int64_t adjusted = 2 * width / 3;
  if (factor) {
    adjusted = static_cast<int64_t>(factor->NonNegativeNumber() *
                                    static_cast<double>(adjusted));
  }
  return (adjusted + multiple - 1) / std::max<int64_t>(1, multiple) * multiple;
}

int64_t FeedforwardWidth(ConfigKeys& config, const ModelType& type) {
  const KeyNames names = {"intermediate_size", "block_ff_dim"};
  if (type.is_moe && config.Has({"moe_intermediate_size"})) {
    return config.SizeOr(names, 0);
  }
  return AdjustedWidth(config.Size(names), config);
}

// Returns the number of layers of multi-token prediction: stated, or that of MiniMax's
// modules.
int64_t PredictionLayers(ConfigKeys& config) {
  const int64_t stated = config.SizeOr(
      {"num_nextn_predict_layers", "num_mtp_layers", "mtp_num_hidden_layers"},
      0);
  const int64_t modules = config.SizeOr({"num_mtp_modules"}, 0) *
                          config.SizeOr({"mtp_transformer_layers"}, 1);
  return stated + (config.Flag("use_mtp", true) ? modules : 0);
}

// Parses Llama and the types that are derived from it.
ModelShape ParseLlamaLike(ConfigKeys& config, const ModelType& type) {
  ModelShape shape{.layers = StatedLayers(config, type),
                   .hidden = config.Size({"hidden_size"}),
                   .heads = config.Size({"num_attention_heads"}),
                   .vocabulary = config.Size({"vocab_size"}),
                   .is_gated = type.is_gated,
                   .has_rope = true,
                   .is_clamped = type.is_clamped};
  if (shape.layers > kMostLayers) return shape;  // CheckShape refuses it
  shape.feedforward = FeedforwardWidth(config, type);
  const auto kv_heads = config.Find({"num_key_value_heads"});
  shape.kv_heads = kv_heads ? kv_heads->Int(1, INT32_MAX) : shape.heads;
  // A default belongs to the default number of heads.
  if (!config.config().Has("num_key_value_heads") &&
      shape.heads % shape.kv_heads != 0) {
    shape.kv_heads = shape.heads;
  }
  shape.head_dim = config.SizeOr({"head_dim"}, shape.hidden / shape.heads);
  shape.is_tied = config.Flag("tie_word_embeddings",
                              config.Flag("tie_embedding", type.is_tied));
  shape.form = ModuleFormOf(type.name);
  shape = WithBiasesAndNorms(std::move(shape), config, type);
  shape.mtp_layers = PredictionLayers(config);
  const auto mtp_blocks = config.Find({"mtp_layers_block_type"});
  if (mtp_blocks && shape.mtp_layers > 0) {
    mtp_blocks->Fail("none, as acplan does not model prediction layers of it");
  }
  const std::vector<LayerKind> kinds = LayerKinds(config, type, shape.layers);
  if (type.is_moe) shape = WithExperts(std::move(shape), config, type, kinds);
  return WithMixers(std::move(shape), config, type, kinds);
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

bool IsEncoderDecoder(const JsonField& root) {
  return root.Has("is_encoder_decoder") &&
         root.Get("is_encoder_decoder").json() == true;
}

[[noreturn]] void FailOfType(const JsonField& type, const JsonField& config) {
  if (IsEncoderDecoder(config)) {
    type.Fail(
        "a decoder, or one of the encoders with decoders that acplan models "
        "(t5, mt5, umt5, whisper, bart and its kin)");
  }
  const std::vector<std::string> foreign = ForeignKeys(config);
  if (!foreign.empty()) {
    type.Fail(fmt::format(
        "a type of which acplan models all parts, unlike those of {}",
        fmt::join(foreign, ", ")));
  }
  std::vector<std::string> known_names;
  for (const std::string_view name : ModelTypeNames()) {
    known_names.emplace_back(name);
  }
  const std::vector<std::string> nearest =
      graph::NearestNames(type.String(), known_names);
  type.Fail(fmt::format(
      "one of the {} types that acplan models{}{} (another decoder with "
      "RMSNorm "
      "and a gated feed-forward may be written as llama: hidden_size, "
      "num_hidden_layers, num_attention_heads, num_key_value_heads, head_dim, "
      "intermediate_size, vocab_size, tie_word_embeddings)",
      known_names.size(), nearest.empty() ? "" : ", such as ",
      fmt::join(nearest, ", ")));
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

// Returns what no measured run confirms about a model's layers.
std::vector<std::string> MixerNotes(const ModelShape& shape) {
  if (shape.IsHybrid()) {
    return {
        fmt::format("{} of {} layers have linear mixers, whose time and "
                    "memory no measured run confirms",
                    shape.linear.layers, shape.layers)};
  }
  if (shape.indexer.layers > 0) {
    return {
        "layers have indexers of sparse attention, whose time and memory no "
        "measured run confirms"};
  }
  return {};
}

// Returns whether the logits use the embedding's weight: what the whole of several parts
// says, if it does.
bool IsTied(const JsonField& root, const std::optional<JsonField>& part,
            bool is_tied) {
  constexpr std::string_view kKey = "tie_word_embeddings";
  if (!part) return is_tied;
  const TowerOwner* owner =
      root.Has("model_type") ? FindTowerOwner(root.Get("model_type").String())
                             : nullptr;
  if (owner != nullptr && owner->has_tied_text) return is_tied;
  const bool is_whole_tied = root.Has(kKey) && root.Get(kKey).Bool();
  const bool is_decided = owner != nullptr && root.Has(kKey);
  if (!is_whole_tied && !is_decided && part->Has(kKey) &&
      part->Get(kKey).Bool()) {
    part->Get(kKey).Fail(
        "false, or true for the whole model, too, which decides it");
  }
  return root.Has(kKey) ? is_whole_tied : is_tied;
}

ModelConfig ParseEncoders(const JsonField& root, std::string_view file) {
  if (root.Has("is_encoder_decoder") && !IsEncoderDecoder(root)) {
    root.Get("is_encoder_decoder")
        .Fail("true, as acplan does not model the decoder alone");
  }
  ConfigKeys config(root, "{}", false);
  ModelConfig read{
      .shape = ParseEncoderDecoder(config, root.Get("model_type").String())};
  CheckShape(read.shape, file);
  CheckShape(*read.shape.towers[0].stack, file);
  config.RequireKnownKeys();
  read.notes = {"no measured run confirms encoders with decoders"};
  return read;
}

}  // namespace

ModelConfig ParseModelConfig(std::string_view text, std::string_view file) {
  const nlohmann::json document = graph::ParseJson(text, file);
  const JsonField root(document, std::string(file));
  const std::optional<JsonField> part = TextPart(root);
  if (part && IsEncoderDecoder(root)) {
    root.Get("is_encoder_decoder")
        .Fail("false, as acplan does not model encoders with such a decoder");
  }
  if (!part && root.Has("model_type") &&
      IsEncoderDecoderType(root.Get("model_type").String())) {
    return ParseEncoders(root, file);
  }
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
  shape.is_tied = IsTied(root, part, shape.is_tied);
  shape = WithDropouts(std::move(shape), config);
  CheckShape(shape, file);
  config.RequireKnownKeys();
  shape.towers = ParseTowers(root, shape);
  read.notes = MixerNotes(shape);
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
