#include "costmodel/training/model/model_types.h"

#include <algorithm>
#include <iterator>

namespace acplan::costmodel {
namespace {

constexpr ConfigSwitch kAlways = {.otherwise = true};
constexpr ConfigSwitch kAttentionBias = {"attention_bias"};
constexpr ConfigSwitch kMlpBias = {"mlp_bias"};
constexpr ConfigSwitch kUseBias = {"use_bias"};

constexpr ModelType Llama(std::string_view name) { return {.name = name}; }

// Returns a type whose biases of attention depend on a key.
constexpr ModelType Biased(std::string_view name) {
  return {.name = name,
          .query_bias = kAttentionBias,
          .output_bias = kAttentionBias};
}

constexpr ModelType AllBiased(std::string_view name, ConfigSwitch feedforward) {
  ModelType type = Biased(name);
  type.feedforward_bias = feedforward;
  return type;
}

constexpr ModelType With(ModelType type, QkNorm norm) {
  type.qk_norm = norm;
  return type;
}

constexpr ModelType Gemma(std::string_view name, int64_t norms,
                          int64_t full_every) {
  ModelType type = Biased(name);
  type.block_norms = norms;
  type.is_tied = true;
  if (full_every > 0) type.windows = WindowRule::kAlternate;
  type.full_every = full_every;
  return type;
}

constexpr ModelType Windowed(ModelType type, WindowRule windows,
                             int64_t full_every = 0) {
  type.windows = windows;
  type.full_every = full_every;
  return type;
}

constexpr ModelType Moe(ModelType type) {
  type.is_moe = true;
  return type;
}

constexpr ModelType Latent(std::string_view name, bool is_moe) {
  ModelType type = Biased(name);
  type.is_latent = true;
  type.is_moe = is_moe;
  return type;
}

constexpr ModelType Tied(ModelType type) {
  type.is_tied = true;
  return type;
}

constexpr ModelType Ernie(ModelType type) {
  type.query_bias = type.output_bias = type.feedforward_bias = kUseBias;
  type.is_tied = true;
  return type;
}

constexpr ModelType Cohere(std::string_view name) {
  ModelType type = Tied(Biased(name));
  type.block_norms = 1;
  return type;
}

constexpr ModelType Cohere1() {
  ModelType type = With(Cohere("cohere"), QkNorm::kWhole);
  type.has_qk_norm = {"use_qk_norm"};
  return type;
}

constexpr ModelType Glm(std::string_view name, int64_t norms) {
  return {.name = name,
          .block_norms = norms,
          .query_bias = {"attention_bias", true}};
}

constexpr ModelType Glm4Moe(std::string_view name) {
  return {.name = name,
          .qk_norm = QkNorm::kHeads,
          .has_qk_norm = {"use_qk_norm"},
          .query_bias = kAttentionBias,
          .is_moe = true};
}

constexpr ModelType kTypes[] = {
    {.name = "apertus",
     .is_gated = false,
     .qk_norm = QkNorm::kHeads,
     .query_bias = kAttentionBias,
     .output_bias = kAttentionBias,
     .has_activation_weights = true},
    {.name = "arcee",
     .is_gated = false,
     .query_bias = kAttentionBias,
     .output_bias = kAttentionBias,
     .feedforward_bias = kMlpBias},
    {.name = "bloom"},
    Cohere1(),
    Windowed(Cohere("cohere2"), WindowRule::kAlternate, 4),
    [] {
      ModelType type = Latent("deepseek_v2", true);
      type.feedforward_bias = kMlpBias;
      return type;
    }(),
    Latent("deepseek_v3", true),
    With(Moe(Biased("dots1")), QkNorm::kHeads),
    Ernie(Llama("ernie4_5")),
    [] {
      ModelType type = Ernie(Moe(Llama("ernie4_5_moe")));
      type.has_route_bias = true;
      type.logits_bias = kUseBias;
      return type;
    }(),
    Windowed(With(Llama("exaone4"), QkNorm::kHeads), WindowRule::kAlternate, 4),
    Windowed(With(Moe(Llama("exaone_moe")), QkNorm::kHeads),
             WindowRule::kAlternate, 4),
    With(Moe(Biased("flex_olmo")), QkNorm::kWhole),
    Gemma("gemma", 2, 0),
    Gemma("gemma2", 4, 2),
    With(Gemma("gemma3_text", 4, 6), QkNorm::kHeads),
    Glm("glm", 2),
    Glm("glm4", 4),
    Glm4Moe("glm4_moe"),
    Latent("glm4_moe_lite", true),
    {.name = "gpt2"},
    {.name = "gpt_neox"},
    {.name = "gpt_oss",
     .query_bias = {"attention_bias", true},
     .output_bias = {"attention_bias", true},
     .is_moe = true,
     .has_expert_bias = true,
     .has_sinks = true,
     .is_clamped = true,
     .windows = WindowRule::kAlternate,
     .full_every = 2},
    AllBiased("granite", kMlpBias),
    Moe(Biased("granitemoe")),
    [] {
      ModelType type = Moe(Biased("granitemoeshared"));
      type.shared = SharedExperts::kByWidth;
      return type;
    }(),
    [] {
      ModelType type = Moe(Biased("granitemoehybrid"));
      type.shared = SharedExperts::kByWidth;
      type.other_layers = "mamba_";
      return type;
    }(),
    With(Biased("hunyuan_v1_dense"), QkNorm::kHeads),
    With(Moe(AllBiased("hy_v3", kMlpBias)), QkNorm::kHeads),
    [] {
      ModelType type = AllBiased("jais2", {"mlp_bias", true});
      type.is_gated = false;
      type.norm_weights = NormWeights::kScaleAndBias;
      type.query_bias = type.output_bias = {"attention_bias", true};
      return type;
    }(),
    AllBiased("llama", kMlpBias),
    [] {
      ModelType type = Moe(Biased("llama4_text"));
      type.shared = SharedExperts::kOneExpert;
      type.windows = WindowRule::kAlternate;
      type.full_every = 4;
      return type;
    }(),
    With(Moe(Llama("minimax_m2")), QkNorm::kWhole),
    Windowed(Llama("ministral"), WindowRule::kAlways),
    Windowed(Llama("ministral3"), WindowRule::kAlways),
    Windowed(Llama("mistral"), WindowRule::kAlways),
    Windowed(Moe(Llama("mixtral")), WindowRule::kAlways),
    {.name = "mpt"},
    [] {
      ModelType type = AllBiased("nemotron", kMlpBias);
      type.is_gated = false;
      type.norm_weights = NormWeights::kScaleAndBias;
      return type;
    }(),
    [] {
      ModelType type = Biased("olmo");
      type.norm_weights = NormWeights::kNone;
      return type;
    }(),
    With(Biased("olmo2"), QkNorm::kWhole),
    Windowed(With(Biased("olmo3"), QkNorm::kWhole), WindowRule::kAlternate, 4),
    With(Moe(Biased("olmoe")), QkNorm::kWhole),
    {.name = "phi",
     .is_gated = false,
     .norm_weights = NormWeights::kScaleAndBias,
     .block_norms = 1,
     .query_bias = kAlways,
     .output_bias = kAlways,
     .feedforward_bias = kAlways,
     .logits_bias = kAlways,
     .refused = "qk_layernorm"},
    Windowed(Llama("phi3"), WindowRule::kAlways),
    [] {
      ModelType type = Moe(Biased("phimoe"));
      type.norm_weights = NormWeights::kScaleAndBias;
      type.logits_bias = {"lm_head_bias"};
      type.windows = WindowRule::kAlways;
      return type;
    }(),
    {.name = "qwen2", .query_bias = kAlways, .windows = WindowRule::kFlag},
    {.name = "qwen2_moe",
     .query_bias = {"qkv_bias", true},
     .is_moe = true,
     .shared = SharedExperts::kByWidth,
     .has_shared_gate = true,
     .windows = WindowRule::kFlag},
    Windowed(With(Biased("qwen3"), QkNorm::kHeads), WindowRule::kFlag),
    Windowed(With(Moe(Biased("qwen3_moe")), QkNorm::kHeads), WindowRule::kFlag),
    {.name = "seed_oss",
     .query_bias = {"attention_bias", true},
     .output_bias = {"attention_out_bias"},
     .feedforward_bias = kMlpBias},
    Windowed(Tied(AllBiased("smollm3", kMlpBias)), WindowRule::kFlag),
    Moe({.name = "solar_open", .query_bias = kAttentionBias}),
    {.name = "stablelm",
     .norm_weights = NormWeights::kScaleAndBias,
     .query_bias = {"use_qkv_bias"},
     .refused = "qk_layernorm"},
    {.name = "starcoder2",
     .is_gated = false,
     .norm_weights = NormWeights::kScaleAndBias,
     .query_bias = {"use_bias", true},
     .output_bias = {"use_bias", true},
     .feedforward_bias = {"use_bias", true},
     .is_tied = true,
     .windows = WindowRule::kAlways},
    Gemma("vaultgemma", 2, 2),
    Tied(Latent("youtu", false)),
};

struct OtherName {
  std::string_view name;
  std::string_view type;
};

// Names of parts of larger models, and of models that use the code of another one.
constexpr OtherName kOtherNames[] = {
    {"gemma3", "gemma3_text"},
    {"glm4v", "glm4"},
    {"glm4v_moe", "glm4_moe"},
    {"glm4v_moe_text", "glm4_moe"},
    {"glm4v_text", "glm4"},
    {"kimi_k2", "deepseek_v3"},
    {"llama4", "llama4_text"},
    {"llava", "llama"},
    {"mistral3", "mistral"},
    {"paligemma", "gemma"},
    {"qwen2_5_omni_text", "qwen2"},
    {"qwen2_5_vl", "qwen2"},
    {"qwen2_5_vl_text", "qwen2"},
    {"qwen2_vl", "qwen2"},
    {"qwen2_vl_text", "qwen2"},
    {"qwen3_omni_moe_text", "qwen3_moe"},
    {"qwen3_vl", "qwen3"},
    {"qwen3_vl_moe", "qwen3_moe"},
    {"qwen3_vl_moe_text", "qwen3_moe"},
    {"qwen3_vl_text", "qwen3"},
};

}  // namespace

const ModelType* FindModelType(std::string_view name) {
  for (const OtherName& other : kOtherNames) {
    if (other.name == name) name = other.type;
  }
  const auto* match = std::ranges::find(kTypes, name, &ModelType::name);
  return match == std::end(kTypes) ? nullptr : match;
}

std::vector<std::string_view> ModelTypeNames() {
  std::vector<std::string_view> names;
  for (const ModelType& type : kTypes) names.push_back(type.name);
  for (const OtherName& other : kOtherNames) names.push_back(other.name);
  std::ranges::sort(names);
  return names;
}

}  // namespace acplan::costmodel
