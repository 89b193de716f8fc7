// The towers of images in a configuration: their sizes are under keys of their own, their
// projectors under keys of the whole model.
#include "costmodel/training/model/tower_config.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "costmodel/training/model/config_keys.h"
#include "costmodel/training/model/known_keys.h"
#include "costmodel/training/model/tower_types.h"

namespace acplan::costmodel {
namespace {

using graph::JsonField;

// The patches of an image whose size the tower does not fix: 448 x 448 pixels in patches of
// 14, 512 x 512 in patches of 16.
constexpr int64_t kUsualPatches = 1024;

// The configuration of a tower, and of the model that has it.
struct TowerKeys {
  ConfigKeys& tower;
  ConfigKeys& owner;
};

// Returns a side: a number, or the product of the two of a list.
int64_t AreaOf(const JsonField& side) {
  if (!side.json().is_array()) {
    const int64_t length = side.Int(1, 1 << 15);
    return length * length;
  }
  int64_t area = 1;
  const std::vector<JsonField> sides = side.Elements();
  if (sides.size() != 2) side.Fail("two sides");
  for (const JsonField& length : sides) area *= length.Int(1, 1 << 15);
  return area;
}

int64_t PatchArea(ConfigKeys& config) {
  const auto side = config.Find({"patch_size"});
  return AreaOf(side.value_or(config.config()));
}

// Returns the patches of an image with the size that the configuration gives; 0 without one.
int64_t GridPatches(ConfigKeys& config) {
  const auto side = config.Find({"image_size"});
  if (!side) return 0;
  const auto patch = config.Find({"patch_size"});
  const auto length = [](const JsonField& field, size_t i) {
    return field.json().is_array() ? field.Elements().at(i).Int(1, 1 << 15)
                                   : field.Int(1, 1 << 15);
  };
  AreaOf(*side);  // refuses a list of another length
  PatchArea(config);
  return (length(*side, 0) / length(*patch, 0)) *
         (length(*side, 1) / length(*patch, 1));
}

// Marks keys as used that change no size of a tower.
void SupersedeHarmless(ConfigKeys& config) {
  config.Supersede({"tokens_per_second", "spatial_patch_size", "in_chans",
                    "vocab_size", "vision_feature_select_strategy",
                    "layer_scale_init_value", "pos_emb_time",
                    "projection_dropout", "rope_parameters", "norm_type",
                    "multi_modal_projector_bias"});
}

// Returns the number of layers that see all patches of an image, and sets the window of the
// others.
ModelShape WithWindows(ModelShape stack, ConfigKeys& config) {
  const int64_t window = config.SizeOr({"window_size"}, 0);
  const int64_t merge = config.SizeOr({"spatial_merge_size"}, 1);
  if (window == 0) return stack;
  const auto side =
      static_cast<int64_t>(std::sqrt(static_cast<double>(PatchArea(config))));
  // Windows have whole tokens of the text.
  const int64_t length =
      std::max<int64_t>(1, window / std::max<int64_t>(1, side * merge)) * merge;
  stack.sliding_window = length * length;
  stack.has_chunks = true;
  for (const int64_t layer : config.Numbers("fullatt_block_indexes")) {
    stack.full_layers += layer < stack.layers ? 1 : 0;
  }
  return stack;
}

ModelShape StackOf(ConfigKeys& config, const TowerType& type) {
  // In Qwen 2's towers hidden_size is that of the result.
  const bool is_scaled = config.Has({"mlp_ratio"}) && config.Has({"embed_dim"});
  ModelShape stack{.layers = config.Size({"num_hidden_layers", "depth"}),
                   .hidden = is_scaled ? config.Size({"embed_dim"})
                                       : config.Size({"hidden_size"}),
                   .heads = config.Size({"num_attention_heads", "num_heads"}),
                   .is_gated = type.is_gated,
                   .norm_weights = type.norm_weights,
                   .has_rope = type.has_rope,
                   .is_tied = true,
                   .is_bidirectional = true};
  stack.feedforward = is_scaled ? config.Size({"mlp_ratio"}) * stack.hidden
                                : config.Size({"intermediate_size"});
  if (stack.layers > kMostLayers) return stack;  // CheckShape refuses it
  stack.kv_heads = config.SizeOr({"num_key_value_heads"}, stack.heads);
  config.Supersede({"head_dim"});  // all heads together have the hidden size
  stack.head_dim = stack.hidden / stack.heads;
  stack.SetBiases(type.has_biases);
  stack.layer_vectors = type.layer_scales * stack.hidden;
  if (type.name == "internvl_vision") {
    stack.has_query_bias = config.Flag("attention_bias", false);
    if (config.Flag("use_qk_norm", false)) {
      stack.form.qk_norm = QkNorm::kWhole;
    }
    const auto norm = config.Find({"norm_type"});
    if (norm && norm->String() == "rms_norm") {
      stack.norm_weights = NormWeights::kScale;
    }
  }
  return WithWindows(std::move(stack), config);
}

int64_t VectorsOfNorm(const ModelShape& stack) {
  return static_cast<int64_t>(stack.norm_weights);
}

// Returns the positions that are added to patches.
int64_t PositionsOf(ConfigKeys& config, const TowerType& type, int64_t grid) {
  switch (type.positions) {
    case PositionRule::kNone:
      return 0;
    case PositionRule::kGrid:
      return config.Flag("use_absolute_position_embeddings", true)
                 ? grid + (type.has_class ? 1 : 0)
                 : 0;
    case PositionRule::kCount:
      return config.Size({"num_position_embeddings"});
    case PositionRule::kSides:
      return config.Size({"pos_emb_height"}) * config.Size({"pos_emb_width"});
  }
  return 0;
}

// Returns the parameters of a head that pools patches, which no projector reads (SigLIP).
int64_t HeadParameters(ConfigKeys& config, const ModelShape& stack) {
  if (!config.Flag("vision_use_head", false)) return 0;
  const int64_t h = stack.hidden;
  const int64_t width = stack.feedforward;
  const int64_t attention = 4 * h * h + 4 * h;
  return h + attention + 2 * h + 2 * h * width + width + h;
}

// Adds a product with its weight and, if it has one, its bias.
void AddProduct(Tower& tower, ProjectorProduct product, bool has_bias) {
  tower.projector_parameters +=
      product.inner * product.columns + (has_bias ? product.columns : 0);
  tower.projector.push_back(product);
}

// Returns the patches that become one vector, from the keys of tower and owner.
int64_t MergedPatches(const TowerKeys& keys) {
  for (ConfigKeys* config : {&keys.tower, &keys.owner}) {
    if (const auto kernel = config->Find({"merge_kernel_size"})) {
      return AreaOf(*kernel);
    }
    if (const auto side =
            config->Find({"spatial_merge_size", "scale_factor"})) {
      return AreaOf(*side);
    }
    const auto ratio =
        config->Find({"pixel_shuffle_ratio", "downsample_ratio"});
    if (!ratio) continue;
    const double share = ratio->NonNegativeNumber();
    const auto side = static_cast<int64_t>(std::lround(1 / share));
    if (side < 1 || side > 64 ||
        std::abs(share * static_cast<double>(side) - 1) > 1e-9) {
      ratio->Fail("one by a whole number, at most 64");
    }
    return side * side;
  }
  return 1;
}

// Returns the layers whose results the projector reads side by side.
int64_t FeatureLayers(ConfigKeys& owner) {
  const auto layers = owner.Find({"vision_feature_layer"});
  if (!layers || !layers->json().is_array()) return 1;
  return std::max<int64_t>(1, static_cast<int64_t>(layers->Elements().size()));
}

Tower WithMerger(Tower tower, const TowerKeys& keys, const ModelShape& text) {
  const ModelShape& stack = *tower.stack;
  const int64_t merged = tower.merged_patches;
  const int64_t wide = merged * stack.hidden;
  // In Qwen 2's towers hidden_size is that of the result.
  const bool is_scaled = keys.tower.Has({"mlp_ratio"});
  const int64_t columns =
      is_scaled ? keys.tower.Size({"hidden_size"})
                : keys.tower.SizeOr({"out_hidden_size"}, text.hidden);
  const auto add = [&](int64_t norm) {
    tower.projector_parameters += norm * VectorsOfNorm(stack);
    AddProduct(tower, {wide, wide, merged}, true);
    AddProduct(tower, {wide, columns, merged}, true);
  };
  add(keys.owner.SizeOr({"projection_hidden_size"}, stack.hidden));
  const size_t deep = keys.tower.Numbers("deepstack_visual_indexes").size();
  for (size_t i = 0; i < deep; ++i) add(wide);
  return tower;
}

Tower WithAdapter(Tower tower, const TowerKeys& keys, const ModelShape& text) {
  const int64_t merged = tower.merged_patches;
  const int64_t inner = keys.tower.Size({"projector_input_dim"});
  const int64_t output = keys.tower.Size({"projector_output_dim"});
  AddProduct(tower, {tower.stack->feedforward, inner, merged}, false);
  // The weight of the second one has the result's size twice.
  tower.projector_parameters += (output - inner) * output;
  AddProduct(tower, {inner, output, merged}, false);
  AddProduct(tower,
             {keys.tower.Size({"vision_output_dim"}), text.hidden, merged},
             false);
  return tower;
}

Tower WithProjector(Tower tower, const TowerOwner& owner, const TowerKeys& keys,
                    const ModelShape& text) {
  const int64_t hidden = tower.stack->hidden;
  tower.merged_patches = MergedPatches(keys);
  const int64_t merged = tower.merged_patches;
  const int64_t wide = merged * hidden;
  const bool has_bias = keys.owner.Flag("multimodal_projector_bias", false);
  if (owner.has_newline) tower.projector_parameters += text.hidden;
  switch (owner.projector) {
    case ProjectorRule::kMerger:
      return WithMerger(std::move(tower), keys, text);
    case ProjectorRule::kAverage: {
      const int64_t tokens = keys.owner.Size({"mm_tokens_per_image"});
      tower.merged_patches = std::max<int64_t>(1, tower.patches / tokens);
      tower.projector_parameters += hidden;
      AddProduct(tower, {hidden, text.hidden, tower.merged_patches}, false);
      return tower;
    }
    case ProjectorRule::kOne: {
      const int64_t columns =
          keys.tower.SizeOr({"projection_dim"}, text.hidden);
      AddProduct(tower, {hidden, columns, 1}, true);
      return tower;
    }
    case ProjectorRule::kTwo:
      keys.tower.Supersede({"projection_dim"});
      AddProduct(tower, {hidden * FeatureLayers(keys.owner), text.hidden, 1},
                 has_bias);
      AddProduct(tower, {text.hidden, text.hidden, 1}, has_bias);
      return tower;
    case ProjectorRule::kShuffled:
      AddProduct(tower, {wide, text.hidden, merged}, false);
      return tower;
    case ProjectorRule::kMergedTwo: {
      const int64_t features = FeatureLayers(keys.owner);
      tower.projector_parameters += hidden;
      AddProduct(tower, {wide, hidden, merged}, false);
      AddProduct(tower, {hidden * features, text.hidden, merged}, has_bias);
      AddProduct(tower, {text.hidden, text.hidden, merged}, has_bias);
      return tower;
    }
    case ProjectorRule::kNormTwo:
      tower.projector_parameters += 2 * wide;
      AddProduct(tower, {wide, text.hidden, merged}, true);
      AddProduct(tower, {text.hidden, text.hidden, merged}, true);
      return tower;
    case ProjectorRule::kAdapter:
      return WithAdapter(std::move(tower), keys, text);
  }
  return tower;
}

Tower ParseTower(std::string_view name, const TowerKeys& keys,
                 const TowerType& type) {
  ConfigKeys& config = keys.tower;
  const ModelShape stack = StackOf(config, type);
  CheckShape(stack, name);
  const int64_t h = stack.hidden;
  Tower tower{.name = std::string(name),
              .stack = std::make_shared<const ModelShape>(stack),
              .positions = type.has_class ? 1 : 0};
  tower.patch_elements = PatchArea(config) *
                         config.SizeOr({"num_channels", "in_channels"}, 3) *
                         config.SizeOr({"temporal_patch_size"}, 1);
  const int64_t grid = GridPatches(config);
  tower.patches = type.has_fixed_size && grid > 0 ? grid : kUsualPatches;
  const int64_t positions = PositionsOf(config, type, grid);
  int64_t norms = type.outer_norms;
  if (type.name == "internvl_vision") {
    norms += config.Flag("use_mean_pooling", true) ? 0 : 1;
    if (config.Flag("use_mask_token", false)) tower.outer_parameters += h;
  }
  tower.outer_parameters +=
      tower.patch_elements * h + (type.has_patch_bias ? h : 0) + positions * h +
      (type.has_class ? h : 0) + norms * VectorsOfNorm(stack) * h +
      HeadParameters(config, stack);
  return tower;
}

[[noreturn]] void FailOfTower(const JsonField& field, std::string_view what) {
  field.Fail(fmt::format(
      "{} (give the text model's part as a file of its own to leave this part "
      "out)",
      what));
}

// Returns the keys of `root` that hold parts other than text.
std::vector<std::string> TowerNames(const JsonField& root) {
  std::vector<std::string> names;
  for (const auto& [key, value] : root.json().items()) {
    if (value.is_object() && IsTower(key)) names.push_back(key);
  }
  return names;
}

}  // namespace

std::vector<Tower> ParseTowers(const JsonField& root, const ModelShape& text) {
  std::vector<Tower> towers;
  for (const std::string& name : TowerNames(root)) {
    const JsonField field = root.Get(name);
    const JsonField owner_type = root.Get("model_type");
    const TowerOwner* owner = FindTowerOwner(owner_type.String());
    if (owner == nullptr || name != "vision_config") {
      FailOfTower(field,
                  fmt::format("none, as acplan models no such part of a {}",
                              owner_type.String()));
    }
    const std::string type_name = field.Has("model_type")
                                      ? field.Get("model_type").String()
                                      : std::string(owner->tower);
    const TowerType* type = FindTowerType(type_name);
    if (type == nullptr) {
      FailOfTower(field.Get("model_type"), "a tower that acplan models");
    }
    ConfigKeys tower_keys(field, type->defaults, true);
    ConfigKeys owner_keys(
        root, owner->defaults.empty() ? "{}" : owner->defaults, true);
    const TowerKeys keys{tower_keys, owner_keys};
    towers.push_back(
        WithProjector(ParseTower(name, keys, *type), *owner, keys, text));
    SupersedeHarmless(tower_keys);
    tower_keys.RequireKnownKeys();
  }
  return towers;
}

}  // namespace acplan::costmodel
