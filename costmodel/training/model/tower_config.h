#pragma once

#include <vector>

#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/model/tower.h"
#include "graph/base/json_fields.h"

namespace acplan::costmodel {

// Parses the towers of a model of several parts, whose text has the shape `text`. Throws
// InputError if a part is not understood, or has a key that is not.
std::vector<Tower> ParseTowers(const graph::JsonField& root,
                               const ModelShape& text);

}  // namespace acplan::costmodel
