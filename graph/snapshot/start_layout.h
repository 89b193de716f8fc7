#pragma once

#include <string_view>
#include <vector>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/segment_layout.h"
#include "graph/snapshot/memory_state.h"

namespace acplan::graph {

// Returns the segments of a moment with their blocks, by address. Mapped ranges
// of one pool and stream are one expandable segment, which begins at the lowest
// address that was ever mapped. Throws InputError, naming `name`, for mapped
// ranges that are not whole pages, and for more than 16 TiB.
std::vector<SegmentLayout> LayoutOf(MemoryState state,
                                    const AllocatorConfig& config,
                                    std::string_view name);

}  // namespace acplan::graph
