#pragma once

#include <cstdint>
#include <functional>
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

// The outcome of a run on one device.
struct DeviceTrial {
  bool fits = false;
  // A device of at least this size may run otherwise; all below it run the same.
  int64_t next_device_bytes = 0;
  int64_t events = 0;
};

inline constexpr int64_t kMostEvents = 400'000'000;

// Searches all devices, from the bytes that blocks take at once upwards. More
// memory may make a run fail, so halving would be no proof. A run on one device
// tells up to which larger one it would be the same; the search goes on there.
// After `most_events` events it halves what is left.
//
// Returns none where no device is large enough.
std::optional<LeastDevice> FindLeastDevice(const AllocatorEvents& events,
                                           const AllocatorConfig& config,
                                           int64_t most_events = kMostEvents);

// Searches as above for any run: `run` says how it ends on a device, and none below
// `from_bytes` is large enough.
std::optional<LeastDevice> FindLeastDevice(
    int64_t from_bytes, const std::function<DeviceTrial(int64_t)>& run,
    int64_t most_events = kMostEvents);

// Returns the most bytes that blocks take at once, each rounded as the allocator
// does, or that the segments take that are there first.
int64_t MostBlockBytes(const AllocatorEvents& events,
                       const AllocatorConfig& config);

}  // namespace acplan::graph
