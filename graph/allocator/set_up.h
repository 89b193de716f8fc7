#pragma once

#include <cstdint>
#include <vector>

#include "graph/allocator/allocator_state.h"
#include "graph/allocator/segment_layout.h"

namespace acplan::graph {

// Adds a segment with its blocks to a pool, and its memory to what the device
// has in use, whether or not the device is so large. Returns a block for each of
// the layout's, none for those that are not allocated. Later segments have
// higher addresses.
std::vector<BlockId> SetUpSegment(AllocatorState& state, PoolId pool,
                                  const SegmentLayout& layout);

// Returns the bytes of a device that segments take once all that can be is given
// back.
int64_t BytesInUse(const AllocatorConfig& config,
                   const std::vector<SegmentLayout>& segments);

}  // namespace acplan::graph
