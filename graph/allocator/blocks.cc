#include "graph/allocator/blocks.h"

#include <algorithm>
#include <bit>
#include <utility>

// The rules are in docs/allocator.md, each with its place in PyTorch's source.
// A block is in exactly one of these places: allocated, waiting, in the free
// list of its pool, in the unmapped set of its pool, or in no segment at all
// (its entry is unused).

namespace acplan::graph {
namespace {

constexpr PyTorchVersion kPrefersOlder{2, 12};
constexpr int64_t kSmallestBlock = 512;
constexpr int64_t kLargestSmall = int64_t{1} << 20;
constexpr int64_t kSmallSegment = int64_t{2} << 20;
constexpr int64_t kExactSegment = int64_t{10} << 20;
constexpr int64_t kSegmentStep = int64_t{2} << 20;

int64_t RoundUp(int64_t bytes, int64_t step) {
  return (bytes + step - 1) / step * step;
}

int64_t Divisions(const AllocatorConfig& config, int64_t bytes) {
  const auto log =
      static_cast<int>(std::bit_width(static_cast<uint64_t>(bytes))) - 1;
  return config.roundup_divisions[std::clamp(log - 20, 0, 15)];
}

// PyTorch 2.12 prefers the older of two blocks of one size, all others the one
// at the lower address.
FreeBlock FreeEntry(const AllocatorState& state, BlockId id) {
  const Block& block = state.At(id);
  const bool is_by_age = state.config.version == kPrefersOlder;
  return {block.size, is_by_age ? block.serial : block.address, id};
}

// The bytes to which a free block can grow: with the unmapped range behind it.
int64_t GrownSize(const AllocatorState& state, const Block& block) {
  if (block.next == kNoBlock || state.At(block.next).is_mapped) {
    return block.size;
  }
  return block.size + state.At(block.next).size;
}

// Returns whether the block grows to the end of its segment, where the size of
// the device decides how far that is.
bool EndsSegment(const AllocatorState& state, const Block& block) {
  if (block.next == kNoBlock) return false;
  const Block& next = state.At(block.next);
  return !next.is_mapped && next.next == kNoBlock;
}

// Returns whether `a` grows to fewer bytes than `b`. Notes the device on which
// the answer is another one.
bool GrowsLess(AllocatorState& state, const Block& a, const Block& b) {
  const int64_t a_size = GrownSize(state, a);
  const int64_t b_size = GrownSize(state, b);
  const bool a_ends = EndsSegment(state, a);
  const bool b_ends = EndsSegment(state, b);
  if (a_ends != b_ends) {
    const int64_t page = state.At(a.pool).page;
    const int64_t reserve =
        ReserveBytes(state.memory, page, state.memory.total);
    const bool is_less = a_size < b_size;
    if (a_ends && is_less) {
      NoteReserve(state.memory, page, reserve + b_size - a_size);
    } else if (b_ends && !is_less) {
      NoteReserve(state.memory, page, reserve + a_size - b_size + 1);
    }
  }
  return a_size < b_size;
}

}  // namespace

int64_t RoundedBytes(const AllocatorConfig& config, int64_t bytes) {
  if (bytes < kSmallestBlock) return kSmallestBlock;
  const int64_t divisions = Divisions(config, bytes);
  if (divisions <= 1 || bytes <= kSmallestBlock * divisions) {
    return RoundUp(bytes, kSmallestBlock);
  }
  const auto floor =
      static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes)));
  return RoundUp(bytes, floor / divisions);
}

bool IsSmall(int64_t rounded_bytes) { return rounded_bytes <= kLargestSmall; }

int64_t SegmentBytes(const AllocatorConfig& config, int64_t rounded_bytes) {
  if (IsSmall(rounded_bytes)) return kSmallSegment;
  if (rounded_bytes < kExactSegment) return config.large_segment_bytes;
  return RoundUp(rounded_bytes, kSegmentStep);
}

std::vector<BlockId> ExistingBlocks(const AllocatorState& state) {
  std::vector<BlockId> blocks;
  for (size_t k = 0; k < state.blocks.size(); ++k) {
    if (state.blocks[k].Exists()) blocks.push_back(BlockId(k));
  }
  return blocks;
}

BlockId NewBlock(AllocatorState& state, const Block& block) {
  BlockId id{static_cast<int32_t>(state.blocks.size())};
  if (state.unused_blocks.empty()) {
    state.blocks.push_back(block);
  } else {
    id = state.unused_blocks.back();
    state.unused_blocks.pop_back();
    state.At(id) = block;
  }
  state.At(id).serial = state.next_serial++;
  return id;
}

SegmentId NewSegment(AllocatorState& state, int64_t size, bool is_expandable) {
  const Segment segment = {.address = state.next_address,
                           .size = size,
                           .number = state.next_segment++,
                           .is_expandable = is_expandable};
  state.next_address += RoundUp(size, kDevicePage) + kDevicePage;
  if (state.unused_segments.empty()) {
    state.segments.push_back(segment);
    return SegmentId{static_cast<int32_t>(state.segments.size() - 1)};
  }
  const SegmentId id = state.unused_segments.back();
  state.unused_segments.pop_back();
  state.At(id) = segment;
  return id;
}

void DropBlock(AllocatorState& state, BlockId id) {
  state.At(id).size = 0;
  state.unused_blocks.push_back(id);
}

void DropSegment(AllocatorState& state, SegmentId id) {
  state.unused_segments.push_back(id);
}

void AddFree(AllocatorState& state, BlockId id) {
  Block& block = state.At(id);
  Pool& pool = state.At(block.pool);
  block.birth = state.At(pool.owner).searches[pool.is_small ? 0 : 1];
  pool.free.Insert(FreeEntry(state, id));
}

void RemoveFree(AllocatorState& state, BlockId id) {
  const Block& block = state.At(id);
  state.At(block.pool).free.Erase(FreeEntry(state, id));
}

void Link(AllocatorState& state, BlockId id, BlockId previous, BlockId next) {
  state.At(id).previous = previous;
  state.At(id).next = next;
  if (previous != kNoBlock) state.At(previous).next = id;
  if (next != kNoBlock) state.At(next).previous = id;
}

void MergeWith(AllocatorState& state, BlockId id, BlockId other) {
  if (other == kNoBlock) return;
  Block& block = state.At(id);
  const Block& merged = state.At(other);
  if (!merged.IsFree() || merged.is_mapped != block.is_mapped) return;
  if (merged.is_mapped) {
    RemoveFree(state, other);
  } else {
    state.At(block.pool).unmapped.erase({merged.address, other});
  }
  block.size += merged.size;
  if (block.previous == other) {
    block.address = merged.address;
    Link(state, id, merged.previous, block.next);
  } else {
    Link(state, id, block.previous, merged.next);
  }
  DropBlock(state, other);
}

void ReturnBlock(AllocatorState& state, BlockId id) {
  MergeWith(state, id, state.At(id).previous);
  MergeWith(state, id, state.At(id).next);
  AddFree(state, id);
}

void ReturnWaiting(AllocatorState& state) {
  // In any order: merging makes blocks of the same addresses. (PyTorch 2.12 also
  // looks at their age, which the order of a hash table decides there.)
  for (const BlockId id : std::exchange(state.waiting, {})) {
    state.At(id).is_used_elsewhere = false;
    ReturnBlock(state, id);
  }
}

BlockId TakeBestFit(AllocatorState& state, PoolId pool_id,
                    int64_t rounded_bytes) {
  const AllocatorConfig& config = state.config;
  Pool& pool = state.At(pool_id);
  if (config.memory_fraction < 1 && config.garbage_collection_threshold > 0) {
    ++state.At(pool.owner).searches[pool.is_small ? 0 : 1];
  }
  FreeList::Position at = pool.free.LowerBound({.size = rounded_bytes});
  if (pool.free.IsEnd(at)) return kNoBlock;
  if (config.expandable_segments) {
    // The best fit by the size to which blocks can grow.
    for (auto next = pool.free.Next(at);
         !pool.free.IsEnd(next) &&
         GrowsLess(state, state.At(pool.free.At(next).block),
                   state.At(pool.free.At(at).block));
         next = pool.free.Next(next)) {
      at = next;
    }
  }
  const FreeBlock best = pool.free.At(at);
  const bool is_oversize = rounded_bytes >= config.max_split_bytes;
  if (!is_oversize && best.size >= config.max_split_bytes) return kNoBlock;
  if (is_oversize &&
      best.size >= rounded_bytes + config.max_non_split_rounding_bytes) {
    return kNoBlock;
  }
  pool.free.Erase(at);
  return best.block;
}

BlockId SplitFor(AllocatorState& state, BlockId id, int64_t rounded_bytes) {
  const Block& block = state.At(id);
  const int64_t rest = block.size - rounded_bytes;
  if (state.At(block.pool).is_small || state.config.expandable_segments) {
    if (rest < kSmallestBlock) return id;
  } else if (rounded_bytes >= state.config.max_split_bytes ||
             rest <= kLargestSmall) {
    return id;
  }
  // The rest keeps the entry, so that it keeps its links to the right.
  Block first = block;
  first.size = rounded_bytes;
  const BlockId first_id = NewBlock(state, first);
  Block& remainder = state.At(id);
  remainder.address += rounded_bytes;
  remainder.size = rest;
  Link(state, first_id, remainder.previous, id);
  AddFree(state, id);
  return first_id;
}

}  // namespace acplan::graph
