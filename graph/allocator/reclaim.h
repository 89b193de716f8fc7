#pragma once

#include <cstdint>

#include "graph/allocator/allocator_state.h"

namespace acplan::graph {

// Gives the native segments of the large pools back that are wholly free and of
// at least average age, until the reserved bytes are at the threshold. Returns
// the bytes.
int64_t CollectGarbage(AllocatorState& state);

// Gives cached blocks above max_split_size_mb of this pool back: one that is
// large enough or, the largest first, as many as it takes. Returns the bytes,
// and sets `is_enough` to whether they suffice.
int64_t ReleaseOversize(AllocatorState& state, PoolId pool,
                        int64_t rounded_bytes, bool& is_enough);

// Returns whether a CUDA graph is captured now.
bool IsCapturing(const AllocatorState& state);

// Gives all segments that are wholly free and all free pages back, once the
// blocks that wait for other streams are free: of private pools without users
// and, unless a graph is captured, of the default ones. Returns the bytes.
int64_t ReleaseCached(AllocatorState& state);

// Gives back the free native segment at this address, or the whole pages of the
// free block of an expandable segment that this address lies in. Returns the
// bytes, 0 if there is no such block.
int64_t ReleaseAt(AllocatorState& state, int64_t address);

}  // namespace acplan::graph
