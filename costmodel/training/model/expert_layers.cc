// The layers that have experts are listed in some configurations and follow from a rule in
// others; both become a list here.
#include "costmodel/training/model/expert_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

namespace acplan::costmodel {
namespace {

using graph::JsonField;
using LayerFlags = std::vector<bool>;

void Refuse(LayerFlags& flags, const std::vector<int64_t>& layers) {
  for (const int64_t layer : layers) {
    if (layer < static_cast<int64_t>(flags.size())) flags[layer] = false;
  }
}

// Returns whether a layer of this name has experts.
bool IsSparse(const JsonField& name) {
  const std::string text = name.String();
  const bool is_sparse = text == "sparse" || text == "moe";
  if (!is_sparse && text != "dense" && text != "mlp") {
    name.Fail("dense or sparse, as acplan does not model other feed-forwards");
  }
  return is_sparse;
}

// Parses a list of "dense" and "sparse", or of 0 and 1, for the layers.
std::optional<LayerFlags> ListedMoeLayers(ConfigKeys& config, int64_t layers) {
  const std::optional<JsonField> list =
      config.Find({"mlp_layer_types", "moe_layer_freq", "is_moe_layer"});
  if (!list || !list->json().is_array()) return {};
  config.Supersede({"first_k_dense_replace", "num_dense_layers",
                    "decoder_sparse_step", "mlp_only_layers"});
  LayerFlags flags;
  for (const JsonField& element : list->Elements()) {
    if (element.json().is_boolean()) {
      flags.push_back(element.Bool());
    } else {
      flags.push_back(element.json().is_string() ? IsSparse(element)
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

// Returns the layers with experts of a model whose layers are one part each.
LayerFlags ExpertBlocks(const std::vector<LayerKind>& kinds) {
  LayerFlags flags;
  for (const LayerKind kind : kinds) {
    flags.push_back(kind == LayerKind::kExperts);
  }
  return flags;
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
  if (const auto period = config.Find({"expert_layer_period"})) {
    const int64_t step = period->Int(1, INT32_MAX);
    const int64_t offset = config.SizeOr({"expert_layer_offset"}, 0);
    for (int64_t i = 0; i < layers; ++i) flags[i] = i % step == offset;
  }
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
      config.Supersede({"n_shared_experts"});  // that width in parts
      return config.SizeOr(
          {"shared_expert_intermediate_size", "shared_intermediate_size",
           "moe_shared_expert_intermediate_size"},
          0);
    case SharedExperts::kOneExpert:
      return shape.expert_feedforward;
    case SharedExperts::kDenseWidth:
      return shape.feedforward;
  }
  return 0;
}

// Returns a shape for which the configuration states that there are no experts.
ModelShape WithoutExperts(ModelShape shape, ConfigKeys& config,
                          const ModelType& type) {
  config.Find({"num_experts_per_tok"});
  config.Find({"expert_layer_period"});
  config.Find({"expert_layer_offset"});
  shape.experts = 0;
  if (type.shared == SharedExperts::kByWidth) {
    shape.feedforward = config.Size({"shared_intermediate_size"});
  }
  return shape;
}

ModelShape WithExpertVectors(ModelShape shape, const ModelType& type) {
  if (type.has_shared_gate) shape.moe_vectors += shape.hidden;
  if (type.has_route_bias) shape.moe_vectors += shape.experts;
  if (type.has_moe_norm) shape.moe_vectors += shape.hidden;
  shape.has_expert_bias = type.has_expert_bias;
  return shape;
}

}  // namespace

ModelShape WithExperts(ModelShape shape, ConfigKeys& config,
                       const ModelType& type,
                       const std::vector<LayerKind>& kinds) {
  const KeyNames experts = {"num_local_experts", "num_experts",
                            "n_routed_experts", "moe_num_experts"};
  shape.experts = config.SizeOr(experts, 0);
  if (shape.experts <= type.most_dense_experts) {
    return WithoutExperts(std::move(shape), config, type);
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
  const int64_t groups = config.SizeOr({"n_group", "num_expert_group"}, 1);
  const int64_t chosen_groups = config.SizeOr({"topk_group"}, 0);
  shape.routed_groups = groups > 1 ? chosen_groups : 0;
  shape = WithExpertVectors(std::move(shape), type);
  const LayerFlags flags = type.has_single_blocks
                               ? ExpertBlocks(kinds)
                               : MoeLayers(config, shape.layers);
  shape = WithMoeLayers(std::move(shape), flags);
  // The width of dense layers does not matter to a model without any (MiniMax-M2).
  if (shape.IsMoe() && shape.dense_layers == 0) {
    config.Supersede({"mlp_intermediate_size"});
  }
  return shape;
}

}  // namespace acplan::costmodel
