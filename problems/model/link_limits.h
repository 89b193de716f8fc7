#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "graph/base/json_fields.h"
#include "graph/trace/link_time.h"

namespace acplan::problems {

// The speed of the link to the host, and the room at its other end.
struct LinkLimits {
  graph::LinkRates rates = {};
  int64_t host_memory_bytes = INT64_MAX;
};

// Reads the rates of a plan's link: `bytes_per_second` to the host, and
// `back_bytes_per_second` if the way back has another one.
graph::LinkRates ReadRates(const graph::JsonField& plan);

// Returns those fields.
nlohmann::ordered_json RatesJson(const graph::LinkRates& rates);

}  // namespace acplan::problems
