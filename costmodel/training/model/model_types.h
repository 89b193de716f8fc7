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
  kAlternate,  // all except every n-th
};

// The size of the feed-forward that runs beside experts.
enum class SharedExperts {
  kByCount,  // a number of experts that all tokens pass
  kByWidth,  // one expert with a separate width
  // One more expert of the common width, which is never mentioned (Llama 4).
  kOneExpert,
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
  bool has_shared_gate = false;         // a number for each token (Qwen 2)
  bool has_route_bias = false;          // a trained number for each expert
  bool has_sinks = false;               // a number for each head
  bool has_activation_weights = false;  // two numbers per layer
  bool is_clamped = false;
  WindowRule windows = WindowRule::kNever;
  int64_t full_every = 0;  // for kAlternate
  // Layers of another kind, given by the beginning of their keys: the configuration must
  // list its layers, and none of these may be among them.
  std::string_view other_layers = {};
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
