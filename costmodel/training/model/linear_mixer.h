#pragma once

#include "costmodel/training/model/config_keys.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/model/model_types.h"

namespace acplan::costmodel {

// Returns the sizes of a hybrid's linear mixer, for a model whose other sizes are `shape`.
// The number of its layers is not set.
LinearMixer ParseLinearMixer(ConfigKeys& config, const ModelType& type,
                             const ModelShape& shape);

}  // namespace acplan::costmodel
