#pragma once

#include <cstdint>

#include "graph/allocator/allocator_state.h"

namespace acplan::graph {

// Maps memory for a block of `rounded_bytes`: at the lowest address of the
// pool's expandable segments that has room, in a new segment if none has. The
// block, of at least so many bytes, is in no list. Returns none where the
// device has too little memory; what was mapped until then stays, free.
BlockId MapBlock(AllocatorState& state, PoolId pool, int64_t rounded_bytes);

// Unmaps the whole pages within every free block of the pool's expandable
// segments, and drops segments that have no mapped page. Returns the bytes.
int64_t UnmapFreePages(AllocatorState& state, PoolId pool);

// Does the same for one free block.
int64_t UnmapFreeBlock(AllocatorState& state, BlockId id);

// Gives expandable segments the address space that they have on a device of
// `total_bytes`. Returns false, and does nothing, if a pool has several of them, or if
// one has no free address space at its end.
bool GrowSegments(AllocatorState& state, int64_t total_bytes);

}  // namespace acplan::graph
