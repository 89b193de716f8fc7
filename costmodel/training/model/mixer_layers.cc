// The layers that attend to a window are listed in some configurations and follow from a
// rule in others.
#include "costmodel/training/model/mixer_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "costmodel/training/model/linear_mixer.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

ModelShape WithLatentAttention(ModelShape shape, ConfigKeys& config) {
  shape.q_rank = config.SizeOr({"q_lora_rank"}, 0);
  shape.kv_rank = config.Size({"kv_lora_rank"});
  shape.qk_nope = config.Size({"qk_nope_head_dim"});
  shape.qk_rope = config.Size({"qk_rope_head_dim"});
  shape.v_dim = config.Size({"v_head_dim"});
  shape.head_dim = shape.QueryDim();
  return shape;
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
  if (type.windows == WindowRule::kFlag || type.windows == WindowRule::kFrom) {
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
                   "global_attn_every_n_layers", "no_rope_layer_interval"});
  if (pattern && pattern->json().is_string()) {
    return FullLayersOfLetters(pattern->String(), layers);
  }
  const int64_t every = pattern ? pattern->Int(0, INT32_MAX) : type.full_every;
  return every > 0 ? layers / every : 0;
}

int64_t CountOf(const std::vector<LayerKind>& kinds, LayerKind kind) {
  return std::count(kinds.begin(), kinds.end(), kind);
}

ModelShape WithWindow(ModelShape shape, ConfigKeys& config,
                      const ModelType& type,
                      const std::vector<LayerKind>& kinds) {
  shape.sliding_window =
      config.SizeOr({"sliding_window", "attention_chunk_size"}, 0);
  shape.has_chunks = config.Has({"attention_chunk_size"});
  const bool is_used = config.Flag("use_sliding_window", true);
  const bool is_flagged = config.config().Has("use_sliding_window") && is_used;
  const int64_t by_rule = FullLayersByRule(config, type, shape.layers);
  const bool is_listed = !kinds.empty();
  const bool has_windows =
      is_listed || (type.windows != WindowRule::kNever &&
                    (type.windows != WindowRule::kFlag || is_flagged));
  if (!has_windows || !is_used) {
    shape.sliding_window = 0;
    return shape;
  }
  if (shape.sliding_window > 0) {
    shape.full_layers =
        is_listed ? shape.AttentionLayers() - CountOf(kinds, LayerKind::kWindow)
                  : by_rule;
  }
  if (shape.full_layers == shape.AttentionLayers()) {
    shape.sliding_window = shape.full_layers = 0;
  }
  return shape;
}

ModelShape WithLinearLayers(ModelShape shape, ConfigKeys& config,
                            const ModelType& type,
                            const std::vector<LayerKind>& kinds) {
  for (const LayerKind kind : kinds) {
    const bool has_both = kind == LayerKind::kBoth;
    if (has_both || kind == LayerKind::kLinear) ++shape.linear.layers;
    const bool is_feedforward =
        kind == LayerKind::kDense || kind == LayerKind::kExperts;
    if (is_feedforward || kind == LayerKind::kLinear) {
      ++shape.layers_without_attention;
    }
    if (type.has_single_blocks && !is_feedforward) {
      ++shape.layers_without_feedforward;
    }
  }
  const int64_t layers = shape.linear.layers;
  shape.linear = ParseLinearMixer(config, type, shape);
  shape.linear.layers = layers;
  shape.has_single_blocks = type.has_single_blocks;
  return shape;
}

// Returns the number of layers with an indexer: a layer without one attends to the keys that
// an earlier one chose.
int64_t IndexerLayers(ConfigKeys& config, int64_t layers) {
  const auto list = config.Find({"indexer_types"});
  if (list) {
    int64_t full = 0;
    const std::vector<JsonField> kinds = list->Elements();
    for (const JsonField& kind : kinds) {
      const std::string name = kind.String();
      if (name != "full" && name != "shared") kind.Fail("full or shared");
      if (name == "full") ++full;
    }
    if (static_cast<int64_t>(kinds.size()) != layers) {
      list->Fail(fmt::format("a list of {} layers", layers));
    }
    return full;
  }
  if (const auto pattern = config.Find({"index_topk_pattern"})) {
    const std::string letters = pattern->String();
    return std::count(letters.begin(), letters.end(), 'F');
  }
  const int64_t every =
      std::max<int64_t>(1, config.SizeOr({"index_topk_freq"}, 1));
  const int64_t offset = config.SizeOr({"index_skip_topk_offset"}, 2);
  int64_t full = 0;
  for (int64_t i = 0; i < layers; ++i) {
    if (std::max<int64_t>(0, i - offset + 1) % every == 0) ++full;
  }
  return full;
}

ModelShape WithIndexer(ModelShape shape, ConfigKeys& config) {
  shape.indexer = {.layers = IndexerLayers(config, shape.layers),
                   .heads = config.Size({"index_n_heads"}),
                   .head_dim = config.Size({"index_head_dim"}),
                   .top_k = config.Size({"index_topk"})};
  return shape;
}

// Requires as many heads in each layer as the model states.
void RequireEqualHeads(ConfigKeys& config, int64_t heads) {
  const auto list = config.Find({"num_attention_heads_per_layer"});
  if (!list) return;
  for (const JsonField& layer : list->Elements()) {
    if (layer.Int(1, INT32_MAX) == heads) continue;
    layer.Fail(fmt::format(
        "{}, as acplan does not model layers with different heads", heads));
  }
}

int64_t GateColumns(const ModelShape& shape, ConfigKeys& config,
                    const ModelType& type) {
  AttentionGate gate = type.gate;
  // Laguna has one of the two.
  const auto kind = config.Find({"gating"});
  if (kind && gate == AttentionGate::kHeads && kind->json().is_string() &&
      kind->String() != "per-head") {
    gate = AttentionGate::kChannels;
  }
  if (kind && gate == AttentionGate::kHeads && kind->json().is_boolean() &&
      !kind->Bool()) {
    gate = AttentionGate::kChannels;
  }
  for (const char* key : {"attn_output_gate", "use_attention_gate"}) {
    if (!config.Flag(key, true)) gate = AttentionGate::kNone;
  }
  switch (gate) {
    case AttentionGate::kNone:
      return 0;
    case AttentionGate::kChannels:
      return shape.heads * shape.ValueDim();
    case AttentionGate::kHeads:
      return shape.heads;
  }
  return 0;
}

}  // namespace

ModelShape WithMixers(ModelShape shape, ConfigKeys& config,
                      const ModelType& type,
                      const std::vector<LayerKind>& kinds) {
  RequireEqualHeads(config, shape.heads);
  if (type.is_latent) shape = WithLatentAttention(std::move(shape), config);
  shape.attention_gate = GateColumns(shape, config, type);
  shape.has_gate_bias = type.has_gate_bias;
  if (type.has_indexer) shape = WithIndexer(std::move(shape), config);
  if (type.linear != LinearKind::kNone) {
    shape = WithLinearLayers(std::move(shape), config, type, kinds);
  }
  return WithWindow(std::move(shape), config, type, kinds);
}

}  // namespace acplan::costmodel
