#pragma once

#include <nlohmann/json_fwd.hpp>

#include "graph/base/json_fields.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Parses the model's tensors of a trace file. `trace` has the storages and the ends of its
// passes. Throws InputError under the conditions of ReadTrace.
ModelTensors ParseModelTensors(const JsonField& field, const Trace& trace);

nlohmann::ordered_json ToJson(const ModelTensors& tensors);

}  // namespace acplan::graph
