#pragma once

#include <cstdint>
#include <vector>

#include "costmodel/training/model/config_keys.h"
#include "costmodel/training/model/model_types.h"

namespace acplan::costmodel {

// The part of a layer that mixes tokens or, in a model whose layers are one part each, the
// feed-forward.
enum class LayerKind {
  kFull,     // attention to everything
  kWindow,   // attention to a window or a chunk
  kIndexed,  // attention to the keys that an indexer chooses
  kLinear,   // a linear mixer
  kBoth,     // attention and a linear mixer beside each other
  kDense,    // only a feed-forward
  kExperts,  // only experts
};

// Returns the kind of each layer, from the list of the configuration or the rule of a
// hybrid's type; empty if there is neither. Fails if the list has layers of a kind that
// models of this type do not have, or if a hybrid lacks it.
std::vector<LayerKind> LayerKinds(ConfigKeys& config, const ModelType& type,
                                  int64_t layers);

// Returns the number of layers that the configuration states: num_hidden_layers or, in a
// model whose layers are one part each, the length of their list.
int64_t StatedLayers(ConfigKeys& config, const ModelType& type);

}  // namespace acplan::costmodel
