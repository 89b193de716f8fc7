#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "costmodel/training/model/model_shape.h"

namespace acplan::costmodel {

// A property that a key of the configuration decides; without a key, `otherwise` always
// holds.
struct ConfigSwitch {
  std::string_view key = {};
  bool otherwise = false;  // if the configuration does not have the key
};

// The rule for the layers that attend to a window if the configuration does not list them.
enum class WindowRule {
  kNever,
  kAlways,     // if there is a window
  kFlag,       // if use_sliding_window is set, from max_window_layers on
  kFrom,       // from max_window_layers on
  kAlternate,  // all except every n-th
};

// The size of the feed-forward that runs beside experts.
enum class SharedExperts {
  kByCount,  // a number of experts that all tokens pass
  kByWidth,  // one expert with a separate width
  // One more expert of the common width, which is never mentioned (Llama 4).
  kOneExpert,
  kDenseWidth,  // a feed-forward of the dense width, which is never mentioned (Hunyuan)
};

// The linear mixer of a hybrid.
enum class LinearKind {
  kNone,
  kGatedDelta,        // gated delta net (Qwen3-Next)
  kKimiDelta,         // with a decay for each channel (Kimi Linear)
  kStateSpace1,       // Mamba (Jamba)
  kStateSpace2,       // Mamba 2
  kLightning,         // linear attention with a fixed decay (MiniMax)
  kShortConvolution,  // LFM2
};

// The product that gates the result of attention.
enum class AttentionGate {
  kNone,
  kChannels,
  kHeads,  // a number for each head
};

// The implementation of a `model_type` in transformers, as far as a configuration does not
// describe it. The defaults are Llama's.
struct ModelType {
  std::string_view name = {};
  bool is_gated = true;
  NormWeights norm_weights = NormWeights::kScale;
  int64_t block_norms = 2;
  QkNorm qk_norm = QkNorm::kNone;
  ConfigSwitch has_qk_norm = {.otherwise = true};
  ConfigSwitch query_bias = {};
  ConfigSwitch output_bias = {};
  ConfigSwitch feedforward_bias = {};
  ConfigSwitch logits_bias = {};
  bool is_tied = false;
  bool is_latent = false;
  bool is_moe = false;
  bool has_expert_bias = false;
  SharedExperts shared = SharedExperts::kByCount;
  bool has_shared_gate = false;  // a number for each token (Qwen 2)
  bool has_route_bias = false;   // a trained number for each expert
  bool has_moe_norm = false;     // after the experts
  bool has_sub_norms =
      false;  // of attention's result and of the activation (BitNet)
  // The norms after attention and feed-forward, of four.
  ConfigSwitch has_outer_norms = {.otherwise = true};
  // Configurations with at most this number of experts have none.
  int64_t most_dense_experts = -1;
  bool has_sinks = false;               // a number for each head
  bool has_activation_weights = false;  // two numbers per layer
  AttentionGate gate = AttentionGate::kNone;
  bool has_gate_bias = false;  // if queries have one
  bool has_indexer = false;
  LinearKind linear = LinearKind::kNone;
  bool mixes_in_parallel =
      false;  // each layer has attention and a linear mixer
  bool has_low_rank_gates = false;  // of Kimi's delta rule
  bool has_single_blocks = false;   // a layer is a mixer or a feed-forward
  bool is_clamped = false;
  WindowRule windows = WindowRule::kNever;
  int64_t full_every = 0;  // for kAlternate
  // A key that must not be true, since the part that it adds is not counted.
  std::string_view refused = {};
};

// Returns the type with this name, or the type that is implemented in the same way; null if
// there is none.
const ModelType* FindModelType(std::string_view name);

// Returns the names that FindModelType knows, sorted.
std::vector<std::string_view> ModelTypeNames();

// Returns the defaults of transformers for keys that a configuration lacks, as JSON. They
// apply to parts of a configuration, which are written without values that equal the
// default.
std::string_view DefaultsOfType(std::string_view name);

}  // namespace acplan::costmodel
