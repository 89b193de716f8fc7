#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_events.h"
#include "graph/allocator/allocator_replay.h"

namespace acplan::graph {

// Free memory of a segment that the allocator can't give back, because of the
// blocks around it.
struct BlockHole {
  int64_t bytes = 0;  // without the whole pages that can be given back
  // The blocks of the list before and behind it; -1: there is none.
  std::array<int32_t, 2> neighbours = {-1, -1};
};

// A block of a segment, allocated or free.
struct BlockPlace {
  int64_t segment = 0;  // its number
  int64_t offset = 0;   // in the segment
  int64_t bytes = 0;
  int64_t hole_bytes = 0;  // that are free and can't be given back
  int32_t block = -1;      // of the list; -1: it is free
};

// The memory of a device at one event.
struct MemoryLayout {
  int64_t allocated_bytes = 0;
  int64_t reserved_bytes = 0;
  std::vector<SegmentUse> segments = {};
  std::vector<BlockHole> holes = {};    // the largest first
  std::vector<BlockPlace> blocks = {};  // by segment and offset

  int64_t HoleBytes() const;
};

// Runs the events up to `last` (none if it is negative) and returns the memory
// after it.
MemoryLayout LayoutAfter(const AllocatorEvents& events,
                         const AllocatorConfig& config, int64_t device_bytes,
                         int64_t last);

}  // namespace acplan::graph
