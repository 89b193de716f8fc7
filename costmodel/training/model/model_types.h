#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "costmodel/training/model/model_shape.h"

namespace acplan::costmodel {

// What a key of the configuration decides; without a key it is always so.
struct ConfigSwitch {
  std::string_view key = {};
  bool otherwise = false;  // where the configuration does not say
};

// Which layers attend to a window where the configuration does not list them.
enum class WindowRule {
  kNever,
  kAlways,     // where there is a window
  kFlag,       // where use_sliding_window says so, from max_window_layers on
  kAlternate,  // all but every n-th
};

// The sizes of a feed-forward beside experts.
enum class SharedExperts {
  kByCount,    // so many experts that all tokens pass
  kByWidth,    // one of a width of its own
  kOneExpert,  // one more of the experts' width, never told (Llama 4)
};

// How transformers writes a `model_type`, as far as a configuration does not say.
// Llama's is the default.
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
  bool has_shared_gate = false;         // a number for each token (Qwen 2)
  bool has_route_bias = false;          // a trained number for each expert
  bool has_sinks = false;               // a number for each head
  bool has_activation_weights = false;  // two numbers a layer
  bool is_clamped = false;
  WindowRule windows = WindowRule::kNever;
  int64_t full_every = 0;  // of kAlternate
  // Layers of another kind, by the beginning of their keys: the configuration must
  // list its layers, and have none of these.
  std::string_view other_layers = {};
  // A key that must not be true, since what it adds is not counted.
  std::string_view refused = {};
};

// By the name of a type or of another that is written the same way; nothing where
// there is none.
const ModelType* FindModelType(std::string_view name);

// The names that FindModelType knows, sorted.
std::vector<std::string_view> ModelTypeNames();

// What transformers takes where a configuration is silent, JSON. It holds for parts
// of a configuration, which are written without what is as usual.
std::string_view DefaultsOfType(std::string_view name);

}  // namespace acplan::costmodel
