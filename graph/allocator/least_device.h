#pragma once

#include <cstdint>
#include <optional>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_events.h"

namespace acplan::graph {

// The smallest device on which a run ends without a failure.
struct LeastDevice {
  int64_t bytes = 0;
  // True where every smaller device fails. Otherwise the limit of runs came first:
  // this one is enough, and so were all that halving met above it.
  bool is_least = true;
  int64_t runs = 0;
};

// Searches all devices, from the bytes that blocks take at once upwards. More
// memory may make a run fail, so halving would be no proof. A run on one device
// tells up to which larger one it would be the same; the search goes on there.
// After `most_events` events it halves what is left.
//
// Returns none where no device is large enough.
std::optional<LeastDevice> FindLeastDevice(const AllocatorEvents& events,
                                           const AllocatorConfig& config,
                                           int64_t most_events = int64_t{
                                               400'000'000});

}  // namespace acplan::graph
