#pragma once

#include <vector>

#include "costmodel/training/model/config_keys.h"
#include "costmodel/training/model/layer_kinds.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/model/model_types.h"

namespace acplan::costmodel {

// Adds the experts of the configuration, and which layers have them. `kinds` are those of
// LayerKinds.
ModelShape WithExperts(ModelShape shape, ConfigKeys& config,
                       const ModelType& type,
                       const std::vector<LayerKind>& kinds);

}  // namespace acplan::costmodel
