#pragma once

#include <cstdint>
#include <limits>
#include <optional>

#include "graph/allocator/allocator_config.h"

namespace acplan::graph {

// The pages in which the driver hands out memory.
inline constexpr int64_t kDevicePage = int64_t{2} << 20;

// A device without a limit: more than any has, and few enough bytes for the
// addresses of thousands of segments.
inline constexpr int64_t kLargestDevice = int64_t{1} << 44;

// The memory of a device, and what its size decides.
//
// A run asks the device's size only through comparisons, each of which comes
// out one way below a size and the other way from that size on. `next_total` is
// the smallest of those sizes above `total`: on every device from `total` to
// just below `next_total` the run is the same.
struct DeviceMemory {
  DeviceMemory(const AllocatorConfig& config, int64_t total_bytes);

  int64_t total = 0;
  int64_t used_bytes = 0;  // in pages
  // The bytes that the process may reserve, and that it has reserved.
  int64_t allowed_bytes = 0;
  int64_t reserved = 0;
  double memory_fraction = 1;
  bool rounds_fraction = false;  // of the device to the nearest byte, not down
  double collection_threshold = 0;
  std::optional<SegmentReserve> segment_reserve = {};
  int64_t next_total = std::numeric_limits<int64_t>::max();
};

// Returns the bytes that a device of `total` bytes allows the process.
int64_t AllowedBytes(const DeviceMemory& memory, int64_t total);

// Returns the reserved bytes above which garbage is collected.
int64_t CollectionBytes(const DeviceMemory& memory, int64_t total);

// Returns the address space of an expandable segment of pages of `page` bytes.
int64_t ReserveBytes(const DeviceMemory& memory, int64_t page, int64_t total);

// Takes `bytes`, whole pages, where they are free. Returns whether they were.
bool TakeBytes(DeviceMemory& memory, int64_t bytes);

// Returns whether the process may reserve `bytes` more.
bool Allows(DeviceMemory& memory, int64_t bytes);

// Returns whether the reserved bytes exceed the threshold of garbage collection.
bool IsAboveCollection(DeviceMemory& memory);

// Notes a comparison that comes out differently once segments of pages of
// `page` bytes have `bytes` of address space.
void NoteReserve(DeviceMemory& memory, int64_t page, int64_t bytes);

}  // namespace acplan::graph
