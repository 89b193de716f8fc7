#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_events.h"
#include "graph/allocator/resumed_runs.h"

namespace acplan::graph {

// The smallest device on which a run ends without a failure.
struct LeastDevice {
  int64_t bytes = 0;
  // True where every smaller device fails. Otherwise the limit of events came first:
  // this one is enough, and so were all that halving met above it.
  bool is_least = true;
  int64_t runs = 0;
  int64_t events = 0;  // that the runs do not have in common
};

// The bounds of a search for the least device.
struct LeastDeviceSearch {
  int64_t from_bytes = 0;  // no smaller device is tried
  int64_t most_events = 400'000'000;
  // The events of a part, which runs have in common or not; 0: a share of all events.
  size_t part_events = 0;
};

// Searches all devices, from the bytes that blocks take at once upwards. More
// memory may make a run fail, so halving would be no proof. A run on one device
// tells up to which larger one it would be the same; the search goes on there,
// with the events that differ (resumed_runs.h). After `most_events` events it
// halves what is left.
//
// Returns none where no device is large enough.
std::optional<LeastDevice> FindLeastDevice(const AllocatorEvents& events,
                                           const AllocatorConfig& config,
                                           const LeastDeviceSearch& search = {},
                                           const RunEnds& ends = {});

// Returns the most bytes that blocks take at once, each rounded as the allocator
// does, or that the segments take that are there first.
int64_t MostBlockBytes(const AllocatorEvents& events,
                       const AllocatorConfig& config);

}  // namespace acplan::graph
