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

constexpr ModelType Hybrid(ModelType type, LinearKind linear) {
  type.linear = linear;
  return type;
}

constexpr ModelType Gated(ModelType type, AttentionGate gate) {
  type.gate = gate;
  return type;
}

constexpr ModelType WithSinks(ModelType type) {
  type.has_sinks = true;
  return type;
}

constexpr ModelType SharedByWidth(ModelType type) {
  type.shared = SharedExperts::kByWidth;
  return type;
}

constexpr ModelType Normed(ModelType type, int64_t norms) {
  type.block_norms = norms;
  return type;
}

constexpr ModelType Indexed(std::string_view name) {
  ModelType type = Latent(name, true);
  type.has_indexer = true;
  return type;
}

// Returns Qwen's hybrids: gated delta nets, and attention with a gate for each channel.
constexpr ModelType QwenHybrid(std::string_view name, bool is_moe) {
  ModelType type =
      Gated(Hybrid(With(Biased(name), QkNorm::kHeads), LinearKind::kGatedDelta),
            AttentionGate::kChannels);
  type.has_gate_bias = true;
  type.is_moe = type.has_shared_gate = is_moe;
  type.shared = SharedExperts::kByWidth;
  return type;
}

constexpr ModelType kTypes[] = {
    [] {
      ModelType type =
          Windowed(Gated(Normed(With(Moe(Biased("afmoe")), QkNorm::kHeads), 4),
                         AttentionGate::kChannels),
                   WindowRule::kAlternate, 4);
      type.has_route_bias = true;
      return type;
    }(),
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
    Moe(AllBiased("aria_text", kMlpBias)),
    [] {
      ModelType type = Latent("axk1", true);
      type.has_moe_norm = true;
      return type;
    }(),
    [] {
      ModelType type =
          Gated(Hybrid(Latent("bailing_hybrid", true), LinearKind::kKimiDelta),
                AttentionGate::kHeads);
      type.refused = "tie_word_embeddings";
      return type;
    }(),
    Hybrid(AllBiased("bamba", kMlpBias), LinearKind::kStateSpace2),
    [] {
      ModelType type = Biased("bitnet");
      type.has_sub_norms = true;
      return type;
    }(),
    {.name = "bloom"},
    Cohere1(),
    Windowed(Cohere("cohere2"), WindowRule::kAlternate, 4),
    Windowed(Moe(Cohere("cohere2_moe")), WindowRule::kAlternate, 4),
    Windowed(Llama("cwm"), WindowRule::kAlternate, 4),
    [] {
      ModelType type = Latent("deepseek_v2", true);
      type.feedforward_bias = kMlpBias;
      return type;
    }(),
    Latent("deepseek_v3", true),
    Indexed("deepseek_v32"),
    Windowed(With(Moe(Biased("dots1")), QkNorm::kHeads), WindowRule::kFrom),
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
    [] {
      ModelType type =
          Hybrid(AllBiased("falcon_h1", kMlpBias), LinearKind::kStateSpace2);
      type.mixes_in_parallel = true;
      return type;
    }(),
    With(Moe(Biased("flex_olmo")), QkNorm::kWhole),
    SharedByWidth(WithSinks(With(Moe(Biased("flint")), QkNorm::kHeads))),
    Gemma("gemma", 2, 0),
    Gemma("gemma2", 4, 2),
    With(Gemma("gemma3_text", 4, 6), QkNorm::kHeads),
    Glm("glm", 2),
    Glm("glm4", 4),
    Glm4Moe("glm4_moe"),
    Latent("glm4_moe_lite", true),
    Indexed("glm_moe_dsa"),
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
      type.most_dense_experts = 0;
      type.linear = LinearKind::kStateSpace2;
      return type;
    }(),
    WithSinks(Tied(AllBiased("granite_swa", kMlpBias))),
    SharedByWidth(WithSinks(Moe(Biased("granitemoe_swa")))),
    With(Biased("hunyuan_v1_dense"), QkNorm::kHeads),
    With(Moe(AllBiased("hy_v3", kMlpBias)), QkNorm::kHeads),
    [] {
      ModelType type = With(Moe(Biased("hunyuan_v1_moe")), QkNorm::kHeads);
      type.shared = SharedExperts::kDenseWidth;
      return type;
    }(),
    [] {
      ModelType type = Normed(AllBiased("hyperclovax", kMlpBias), 4);
      type.has_outer_norms = {"use_post_norm", true};
      return type;
    }(),
    AllBiased("internlm3", kMlpBias),
    AllBiased("iquestcoder", kMlpBias),
    [] {
      ModelType type = AllBiased("jais2", {"mlp_bias", true});
      type.is_gated = false;
      type.norm_weights = NormWeights::kScaleAndBias;
      type.query_bias = type.output_bias = {"attention_bias", true};
      return type;
    }(),
    [] {
      ModelType type = Hybrid(Moe(Llama("jamba")), LinearKind::kStateSpace1);
      type.most_dense_experts = 1;
      return type;
    }(),
    [] {
      ModelType type =
          Hybrid(Latent("kimi_linear", true), LinearKind::kKimiDelta);
      type.has_low_rank_gates = true;
      type.refused = "tie_word_embeddings";
      return type;
    }(),
    SharedByWidth(Normed(With(Moe(Llama("kolibri1")), QkNorm::kHeads), 4)),
    [] {
      ModelType type = SharedByWidth(Gated(
          With(Moe(Biased("laguna")), QkNorm::kHeads), AttentionGate::kHeads));
      type.has_route_bias = true;
      return type;
    }(),
    Hybrid(Tied(With(Llama("lfm2"), QkNorm::kHeads)),
           LinearKind::kShortConvolution),
    Hybrid(Tied(With(Moe(Llama("lfm2_moe")), QkNorm::kHeads)),
           LinearKind::kShortConvolution),
    [] {
      ModelType type =
          Gated(Hybrid(Normed(Tied(With(Biased("lfm3"), QkNorm::kHeads)), 4),
                       LinearKind::kShortConvolution),
                AttentionGate::kHeads);
      type.has_outer_norms = {"use_sandwich_norm", true};
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
    With(Moe(Biased("mellum")), QkNorm::kHeads),
    [] {
      ModelType type = Tied(Latent("minicpm3", false));
      type.feedforward_bias = kMlpBias;
      return type;
    }(),
    Hybrid(Moe(Llama("minimax")), LinearKind::kLightning),
    With(Moe(Llama("minimax_m2")), QkNorm::kWhole),
    Windowed(Llama("ministral"), WindowRule::kAlways),
    Windowed(Llama("ministral3"), WindowRule::kAlways),
    Windowed(Llama("mistral"), WindowRule::kAlways),
    Windowed(Moe(Llama("mixtral")), WindowRule::kAlways),
    {.name = "mpt"},
    [] {
      ModelType type = Biased("nanochat");
      type.is_gated = false;
      type.norm_weights = NormWeights::kNone;
      return type;
    }(),
    [] {
      ModelType type = AllBiased("nemotron", kMlpBias);
      type.is_gated = false;
      type.norm_weights = NormWeights::kScaleAndBias;
      return type;
    }(),
    [] {
      ModelType type = SharedByWidth(Normed(
          Hybrid(Moe({.name = "nemotron_h", .feedforward_bias = kMlpBias}),
                 LinearKind::kStateSpace2),
          1));
      type.is_gated = false;
      type.has_single_blocks = true;
      type.refused = "tie_word_embeddings";
      return type;
    }(),
    [] {
      ModelType type = Biased("olmo");
      type.norm_weights = NormWeights::kNone;
      return type;
    }(),
    With(Biased("olmo2"), QkNorm::kWhole),
    Windowed(With(Biased("olmo3"), QkNorm::kWhole), WindowRule::kAlternate, 4),
    Hybrid(With(Biased("olmo_hybrid"), QkNorm::kWhole),
           LinearKind::kGatedDelta),
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
    QwenHybrid("qwen3_5_moe_text", true),
    QwenHybrid("qwen3_5_text", false),
    QwenHybrid("qwen3_next", true),
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
    {"kimi_k25", "deepseek_v3"},
    {"llama4", "llama4_text"},
    {"llava", "llama"},
    {"mistral3", "mistral"},
    {"paligemma", "gemma"},
    {"qwen2_5_omni_text", "qwen2"},
    {"qwen2_5_vl", "qwen2"},
    {"qwen2_5_vl_text", "qwen2"},
    {"qwen2_vl", "qwen2"},
    {"qwen2_vl_text", "qwen2"},
    {"qwen3_5", "qwen3_5_text"},
    {"qwen3_5_moe", "qwen3_5_moe_text"},
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
