#pragma once

#include <nlohmann/json_fwd.hpp>

#include "graph/base/json_fields.h"
#include "graph/trace/host_times.h"

namespace acplan::graph {

// Reads the object `host` of a trace. Throws InputError if a time is missing, negative or
// longer than a second.
HostTimes ParseHostTimes(const JsonField& field);
nlohmann::ordered_json ToJson(const HostTimes& host);

}  // namespace acplan::graph
