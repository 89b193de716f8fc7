#pragma once

#include <cstdint>
#include <vector>

#include "graph/allocator/allocator_state.h"

namespace acplan::graph {

// Returns the bytes of a block for a request of `bytes`: at least 512, rounded
// up to 512 or to a division of a power of two.
int64_t RoundedBytes(const AllocatorConfig& config, int64_t bytes);

// Returns whether blocks of this rounded size come from the small pool.
bool IsSmall(int64_t rounded_bytes);

// Returns the bytes that are asked from the device for a block of this size.
int64_t SegmentBytes(const AllocatorConfig& config, int64_t rounded_bytes);

// Returns the blocks of the table that exist, in the order of their ids.
std::vector<BlockId> ExistingBlocks(const AllocatorState& state);

// Adds a block to the table.
BlockId NewBlock(AllocatorState& state, const Block& block);

// Adds a segment of `size` bytes of addresses, above those of all before it.
SegmentId NewSegment(AllocatorState& state, int64_t size, bool is_expandable);

// Removes them from their tables. Nothing may refer to them any more.
void DropBlock(AllocatorState& state, BlockId id);
void DropSegment(AllocatorState& state, SegmentId id);

// Adds a block to the free ones of its pool, or removes it.
void AddFree(AllocatorState& state, BlockId id);
void RemoveFree(AllocatorState& state, BlockId id);

// Merges `other`, a neighbour of `id` or none, into `id` where it is free and
// both are mapped or neither is. `id` itself is in no list.
void MergeWith(AllocatorState& state, BlockId id, BlockId other);

// Links `id` into its segment between two neighbours, or none.
void Link(AllocatorState& state, BlockId id, BlockId previous, BlockId next);

// Makes a block free, merged with its free neighbours.
void ReturnBlock(AllocatorState& state, BlockId id);

// Makes every freed block free that has waited for another stream.
void ReturnWaiting(AllocatorState& state);

// Finds the block that serves a request and removes it from the free ones.
// Returns none where there is none.
BlockId TakeBestFit(AllocatorState& state, PoolId pool, int64_t rounded_bytes);

// Splits what a request does not need off the block, where the rules allow it,
// and returns the block with the rest of the bytes.
BlockId SplitFor(AllocatorState& state, BlockId id, int64_t rounded_bytes);

}  // namespace acplan::graph
