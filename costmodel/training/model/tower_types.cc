#include "costmodel/training/model/tower_types.h"

#include <algorithm>
#include <iterator>

namespace acplan::costmodel {
namespace {

constexpr TowerType kTowerTypes[] = {
    {.name = "clip_vision_model",
     .defaults =
         R"({"hidden_size": 768, "intermediate_size": 3072,
       "num_hidden_layers": 12, "num_attention_heads": 12, "num_channels": 3,
       "image_size": 224, "patch_size": 32})",
     .has_patch_bias = false,
     .has_class = true,
     .outer_norms = 2},
    {.name = "exaone4_5_vision",
     .defaults = R"({"depth": 32, "hidden_size": 3584, "intermediate_size":
       3420, "num_heads": 16, "num_key_value_heads": 8, "in_channels": 3,
       "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2,
       "window_size": 112, "out_hidden_size": 3584,
       "fullatt_block_indexes": [7, 15, 23, 31]})",
     .is_gated = true,
     .norm_weights = NormWeights::kScale,
     .has_rope = true,
     .has_patch_bias = false,
     .positions = PositionRule::kNone},
    {.name = "idefics3_vision",
     .defaults =
         R"({"hidden_size": 1152, "intermediate_size": 3072,
       "num_hidden_layers": 12, "num_attention_heads": 16, "num_channels": 3,
       "image_size": 224, "patch_size": 32})",
     .outer_norms = 1},
    {.name = "internvl_vision",
     .defaults =
         R"({"hidden_size": 1024, "intermediate_size": 4096,
       "num_hidden_layers": 24, "num_attention_heads": 16, "num_channels": 3,
       "image_size": [448, 448], "patch_size": [14, 14]})",
     .has_class = true,
     .layer_scales = 2},
    {.name = "kimi_k25_vision",
     .defaults =
         R"({"hidden_size": 1152, "intermediate_size": 4304,
       "num_hidden_layers": 27, "num_attention_heads": 16, "patch_size": 14,
       "pos_emb_height": 64, "pos_emb_width": 64,
       "merge_kernel_size": [2, 2]})",
     .has_rope = true,
     .positions = PositionRule::kSides,
     .outer_norms = 1},
    {.name = "llama4_vision_model",
     .defaults =
         R"({"hidden_size": 768, "intermediate_size": 5632,
       "num_hidden_layers": 34, "num_attention_heads": 16, "num_channels": 3,
       "image_size": 448, "patch_size": 14, "pixel_shuffle_ratio": 0.5,
       "projector_input_dim": 4096, "projector_output_dim": 4096,
       "vision_output_dim": 7680})",
     .has_rope = true,
     .has_patch_bias = false,
     .has_class = true,
     .outer_norms = 2},
    {.name = "pixtral",
     .defaults =
         R"({"hidden_size": 1024, "intermediate_size": 4096,
       "num_hidden_layers": 24, "num_attention_heads": 16, "num_channels": 3,
       "image_size": 1024, "patch_size": 16})",
     .is_gated = true,
     .norm_weights = NormWeights::kScale,
     .has_biases = false,
     .has_rope = true,
     .has_patch_bias = false,
     .positions = PositionRule::kNone,
     .outer_norms = 1,
     .has_fixed_size = false},
    {.name = "qwen2_5_vl_vision",
     .defaults = R"({"depth": 32, "hidden_size": 3584, "intermediate_size":
       3420, "num_heads": 16, "in_channels": 3, "patch_size": 14,
       "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 112,
       "out_hidden_size": 3584, "fullatt_block_indexes": [7, 15, 23, 31]})",
     .is_gated = true,
     .norm_weights = NormWeights::kScale,
     .has_rope = true,
     .has_patch_bias = false,
     .positions = PositionRule::kNone},
    {.name = "qwen2_vl_vision",
     .defaults = R"({"depth": 32, "embed_dim": 1280, "hidden_size": 3584,
       "mlp_ratio": 4, "num_heads": 16, "in_channels": 3, "patch_size": 14,
       "spatial_merge_size": 2, "temporal_patch_size": 2})",
     .has_rope = true,
     .has_patch_bias = false,
     .positions = PositionRule::kNone},
    {.name = "qwen3_5_vision",
     .defaults = R"({"depth": 27, "hidden_size": 1152, "intermediate_size":
       4304, "num_heads": 16, "in_channels": 3, "patch_size": 16,
       "spatial_merge_size": 2, "temporal_patch_size": 2,
       "out_hidden_size": 3584, "num_position_embeddings": 2304})",
     .has_rope = true,
     .positions = PositionRule::kCount},
    {.name = "qwen3_vl_vision",
     .defaults = R"({"depth": 27, "hidden_size": 1152, "intermediate_size":
       4304, "num_heads": 16, "in_channels": 3, "patch_size": 16,
       "spatial_merge_size": 2, "temporal_patch_size": 2,
       "out_hidden_size": 3584, "num_position_embeddings": 2304,
       "deepstack_visual_indexes": [8, 16, 24]})",
     .has_rope = true,
     .positions = PositionRule::kCount},
    {.name = "siglip_vision_model",
     .defaults =
         R"({"hidden_size": 768, "intermediate_size": 3072,
       "num_hidden_layers": 12, "num_attention_heads": 12, "num_channels": 3,
       "image_size": 224, "patch_size": 16, "vision_use_head": true})",
     .outer_norms = 1},
};

struct OtherTower {
  std::string_view name;
  std::string_view type;
};

// Towers that use the code of another one.
constexpr OtherTower kOtherTowers[] = {
    {"qwen2_5_omni_vision_encoder", "qwen2_5_vl_vision"},
    {"qwen3_5_moe_vision", "qwen3_5_vision"},
    {"qwen3_omni_moe_vision_encoder", "qwen3_vl_vision"},
    {"qwen3_vl_moe_vision", "qwen3_vl_vision"},
    {"smolvlm_vision", "idefics3_vision"},
};

constexpr TowerOwner kOwners[] = {
    {.name = "exaone4_5",
     .tower = "exaone4_5_vision",
     .projector = ProjectorRule::kMerger},
    {.name = "gemma3",
     .tower = "siglip_vision_model",
     .projector = ProjectorRule::kAverage,
     .defaults = R"({"mm_tokens_per_image": 256})"},
    {.name = "idefics3",
     .tower = "idefics3_vision",
     .projector = ProjectorRule::kShuffled,
     .defaults = R"({"scale_factor": 2})"},
    {.name = "internvl",
     .tower = "internvl_vision",
     .projector = ProjectorRule::kNormTwo,
     .defaults = R"({"downsample_ratio": 0.5})"},
    {.name = "kimi_k25",
     .tower = "kimi_k25_vision",
     .projector = ProjectorRule::kMerger,
     .defaults = R"({"projection_hidden_size": 1152})"},
    {.name = "lighton_ocr",
     .tower = "pixtral",
     .projector = ProjectorRule::kMergedTwo,
     .defaults = R"({"spatial_merge_size": 2})"},
    {.name = "llama4",
     .tower = "llama4_vision_model",
     .projector = ProjectorRule::kAdapter,
     .has_tied_text = true},
    {.name = "llava",
     .tower = "clip_vision_model",
     .projector = ProjectorRule::kTwo,
     .defaults = R"({"multimodal_projector_bias": true,
       "vision_feature_layer": -2})"},
    {.name = "llava_next",
     .tower = "clip_vision_model",
     .projector = ProjectorRule::kTwo,
     .defaults = R"({"multimodal_projector_bias": true,
       "vision_feature_layer": -2})",
     .has_newline = true},
    {.name = "llava_onevision",
     .tower = "siglip_vision_model",
     .projector = ProjectorRule::kTwo,
     .defaults = R"({"multimodal_projector_bias": true,
       "vision_feature_layer": -1})",
     .has_newline = true},
    {.name = "mistral3",
     .tower = "pixtral",
     .projector = ProjectorRule::kMergedTwo,
     .defaults = R"({"spatial_merge_size": 2,
       "multimodal_projector_bias": false, "vision_feature_layer": -1})"},
    {.name = "paligemma",
     .tower = "siglip_vision_model",
     .projector = ProjectorRule::kOne},
    {.name = "qwen2_5_vl",
     .tower = "qwen2_5_vl_vision",
     .projector = ProjectorRule::kMerger},
    {.name = "qwen2_vl",
     .tower = "qwen2_vl_vision",
     .projector = ProjectorRule::kMerger},
    {.name = "qwen3_5",
     .tower = "qwen3_5_vision",
     .projector = ProjectorRule::kMerger},
    {.name = "qwen3_5_moe",
     .tower = "qwen3_5_vision",
     .projector = ProjectorRule::kMerger},
    {.name = "qwen3_vl",
     .tower = "qwen3_vl_vision",
     .projector = ProjectorRule::kMerger},
    {.name = "qwen3_vl_moe",
     .tower = "qwen3_vl_vision",
     .projector = ProjectorRule::kMerger},
    {.name = "smolvlm",
     .tower = "idefics3_vision",
     .projector = ProjectorRule::kShuffled,
     .defaults = R"({"scale_factor": 2})"},
};

}  // namespace

const TowerOwner* FindTowerOwner(std::string_view name) {
  const auto* match = std::ranges::find(kOwners, name, &TowerOwner::name);
  return match == std::end(kOwners) ? nullptr : match;
}

const TowerType* FindTowerType(std::string_view name) {
  if (const TowerOwner* owner = FindTowerOwner(name)) name = owner->tower;
  for (const OtherTower& other : kOtherTowers) {
    if (other.name == name) name = other.type;
  }
  const auto* match = std::ranges::find(kTowerTypes, name, &TowerType::name);
  return match == std::end(kTowerTypes) ? nullptr : match;
}

}  // namespace acplan::costmodel
