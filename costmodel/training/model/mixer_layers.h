#pragma once

#include <vector>

#include "costmodel/training/model/config_keys.h"
#include "costmodel/training/model/layer_kinds.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/model/model_types.h"

namespace acplan::costmodel {

// Adds what mixes tokens: latent attention, gates, indexers, windows, and the linear mixers
// of a hybrid. `kinds` are those of LayerKinds.
ModelShape WithMixers(ModelShape shape, ConfigKeys& config,
                      const ModelType& type,
                      const std::vector<LayerKind>& kinds);

}  // namespace acplan::costmodel
