#include "costmodel/training/model/layer_kinds.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string>

namespace acplan::costmodel {
namespace {

using graph::JsonField;
using enum LayerKind;
using Kinds = std::vector<LayerKind>;

std::optional<JsonField> FindList(ConfigKeys& config) {
  return config.Find({"layer_types", "layers_block_type"});
}

bool MayHave(const ModelType& type, LayerKind kind) {
  switch (kind) {
    case kFull:
    case kWindow:
      return true;
    case kIndexed:
      return type.has_indexer;
    case kLinear:
      return type.linear != LinearKind::kNone;
    case kBoth:
      return false;
    case kDense:
    case kExperts:
      return type.has_single_blocks;
  }
  return false;
}

LayerKind KindNamed(const JsonField& name, const ModelType& type) {
  static const std::map<std::string, LayerKind, std::less<>> kNames = {
      {"full_attention", kFull},
      {"attention", kFull},
      {"sliding_attention", kWindow},
      {"chunked_attention", kWindow},
      {"linear_attention", kLinear},
      {"mamba", kLinear},
      {"conv", kLinear},
      {"indexed_attention", kIndexed},
      {"deepseek_sparse_attention", kIndexed},
      {"mlp", kDense},
      {"moe", kExperts}};
  const auto entry = kNames.find(name.String());
  const bool is_convolution = type.linear == LinearKind::kShortConvolution;
  if (entry == kNames.end() || !MayHave(type, entry->second) ||
      (entry->second == kLinear &&
       is_convolution != (entry->first == "conv"))) {
    name.Fail(fmt::format(
        "full_attention, sliding_attention or chunked_attention{}, as acplan "
        "does not model other kinds of layers of {}",
        type.linear == LinearKind::kNone
            ? (type.has_indexer ? " or indexed_attention" : "")
        : is_convolution ? " or conv"
                         : " or linear_attention",
        type.name));
  }
  return entry->second;
}

// Parses the letters of Nemotron-H: M for a state space, * for attention, - for a
// feed-forward, E for experts.
Kinds KindsOfLetters(const JsonField& pattern) {
  static const std::map<char, LayerKind> kLetters = {
      {'M', kLinear}, {'*', kFull}, {'-', kDense}, {'E', kExperts}};
  Kinds kinds;
  for (const char letter : pattern.String()) {
    const auto entry = kLetters.find(letter);
    if (entry == kLetters.end()) pattern.Fail("letters of M, *, - and E");
    kinds.push_back(entry->second);
  }
  return kinds;
}

std::optional<Kinds> ListedKinds(ConfigKeys& config, const ModelType& type) {
  if (const auto list = FindList(config)) {
    Kinds kinds;
    for (const JsonField& element : list->Elements()) {
      kinds.push_back(KindNamed(element, type));
    }
    return kinds;
  }
  if (!type.has_single_blocks) return {};
  const auto pattern = config.Find({"hybrid_override_pattern"});
  return pattern ? std::optional(KindsOfLetters(*pattern)) : std::nullopt;
}

// Returns linear layers, except those for which `has_attention` is true.
template <typename Predicate>
Kinds Hybrid(int64_t layers, Predicate has_attention) {
  Kinds kinds;
  for (int64_t i = 0; i < layers; ++i) {
    kinds.push_back(has_attention(i) ? kFull : kLinear);
  }
  return kinds;
}

Kinds WithFull(int64_t layers, const std::vector<int64_t>& full,
               int64_t first) {
  return Hybrid(layers, [&](int64_t layer) {
    return std::ranges::find(full, layer + first) != full.end();
  });
}

// Returns the kinds of a hybrid's layers by the keys of its type; nothing if there are none.
std::optional<Kinds> KindsByRule(ConfigKeys& config, int64_t layers) {
  const std::vector<int64_t> numbers = config.Numbers("attn_type_list");
  if (!numbers.empty()) {
    return Hybrid(layers, [&](int64_t i) {
      return i < static_cast<int64_t>(numbers.size()) && numbers[i] == 1;
    });
  }
  for (const char* key : {"attn_layer_indices", "full_attn_idxs"}) {
    // Null stands for no layer.
    if (config.config().json().contains(key)) {
      return WithFull(layers, config.Numbers(key), 0);
    }
  }
  if (const auto part = config.Find({"linear_attn_config"})) {
    std::vector<int64_t> full;
    for (const JsonField& layer : part->Get("full_attn_layers").Elements()) {
      full.push_back(layer.Int(1, layers));
    }
    return WithFull(layers, full, 1);
  }
  if (const auto period = config.Find({"attn_layer_period"})) {
    const int64_t every = period->Int(1, INT32_MAX);
    const int64_t offset = config.SizeOr({"attn_layer_offset"}, 0);
    return Hybrid(layers, [=](int64_t i) { return i % every == offset; });
  }
  if (const auto interval =
          config.Find({"full_attention_interval", "layer_group_size"})) {
    const int64_t every = interval->Int(1, INT32_MAX);
    return Hybrid(layers, [=](int64_t i) { return (i + 1) % every == 0; });
  }
  return {};
}

// Requires that the list of a model without linear layers has none (MiniMax-M2).
void RequireFullAttention(ConfigKeys& config) {
  for (const int64_t kind : config.Numbers("attn_type_list")) {
    if (kind != 1)
      config.config().Get("attn_type_list").Fail("1 for each layer");
  }
}

}  // namespace

int64_t StatedLayers(ConfigKeys& config, const ModelType& type) {
  if (!type.has_single_blocks) return config.Size({"num_hidden_layers"});
  config.Find({"num_hidden_layers"});
  const auto kinds = ListedKinds(config, type);
  if (!kinds) config.config().Get("layers_block_type");  // fails: it is missing
  return std::max<int64_t>(1, static_cast<int64_t>(kinds->size()));
}

std::vector<LayerKind> LayerKinds(ConfigKeys& config, const ModelType& type,
                                  int64_t layers) {
  if (auto kinds = ListedKinds(config, type)) {
    config.Supersede({"full_attention_interval", "layer_group_size",
                      "attn_type_list", "attn_layer_indices", "full_attn_idxs",
                      "attn_layer_period", "attn_layer_offset",
                      "hybrid_override_pattern", "sliding_window_pattern",
                      "_sliding_window_pattern", "max_window_layers",
                      "global_attn_every_n_layers",
                      "prefix_dense_sliding_window_pattern"});
    if (static_cast<int64_t>(kinds->size()) < layers) {
      FindList(config)->Fail(fmt::format("a list of {} layers", layers));
    }
    kinds->resize(static_cast<size_t>(layers));
    return *kinds;
  }
  if (type.has_indexer) return Kinds(static_cast<size_t>(layers), kIndexed);
  if (type.mixes_in_parallel) return Kinds(static_cast<size_t>(layers), kBoth);
  if (type.linear == LinearKind::kNone) {
    RequireFullAttention(config);
    return {};
  }
  const auto kinds = KindsByRule(config, layers);
  if (!kinds) config.config().Get("layer_types");  // fails: it is missing
  return *kinds;
}

}  // namespace acplan::costmodel
