#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "graph/allocator/allocator_config.h"
#include "graph/snapshot/snapshot.h"

// The memory of a device at some moment of a recording, as plain maps that the
// functions below take one event back.

namespace acplan::graph {

// A block that lives at some moment.
struct LiveBlock {
  int32_t block = -1;       // its place among the blocks of the recording
  int64_t asked_bytes = 0;  // that the program asked for
  // Its size, if it lives in the snapshot or if another block showed it.
  std::optional<int64_t> bytes = {};
};

// A segment, or a mapped range of an expandable one.
struct SegmentRange {
  int64_t bytes = 0;
  int64_t stream = 0;
  bool is_small = false;
  bool is_expandable = false;
  std::optional<int64_t> private_pool = {};
};

struct MemoryState {
  // All are indexed by address.
  std::map<int64_t, SegmentRange> ranges;
  std::map<int64_t, SegmentRange> past_ranges;  // of this and all later moments
  std::map<int64_t, LiveBlock> live;
};

// Returns whether two ranges belong to the same pool and kind of segments.
bool IsSameKind(const SegmentRange& a, const SegmentRange& b);

// Returns the range that `address` lies in, or null.
const SegmentRange* RangeAt(const MemoryState& state, int64_t address);

// Returns whether a block of the event can have lived: it lies within a range and
// overlaps no live block.
bool HasRoom(const MemoryState& state, const SnapshotEvent& event);

// Returns the bytes of the block for the request of a live one.
int64_t RoundedBytesOf(const AllocatorConfig& config, const LiveBlock& block);

// Returns the bytes from which on what is left of a native block in the large
// pool is split off.
int64_t LargestUnsplit();

// Learns the size of the live block before `address`, where another one was
// allocated while it lived. In the large pool of native segments no block has
// less than 1 MiB, so a gap of that size belongs to the block before it.
void LearnSize(MemoryState& state, const AllocatorConfig& config,
               int64_t address);

// Takes the event back. Returns false, and changes nothing, if it contradicts the
// state; so do the two functions below.
bool UndoSegmentAllocation(MemoryState& state, const SnapshotEvent& event);
// Takes a segment_free or a segment_unmap back.
bool UndoRelease(MemoryState& state, const AllocatorConfig& config,
                 const SnapshotEvent& event);
// Takes a segment_map back.
bool UndoMap(MemoryState& state, const SnapshotEvent& event);

}  // namespace acplan::graph
