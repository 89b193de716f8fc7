#include "graph/allocator/expandable_segments.h"

#include <algorithm>
#include <vector>

#include "graph/allocator/blocks.h"

// An expandable segment is a chain of blocks over its whole address range. Which
// pages are mapped follows from the blocks: unmapped blocks begin and end at
// pages, and neighbours of which both are free or both are unmapped are one
// block. So a run of addresses with room is a free block, an unmapped one and
// so on, in turns.

namespace acplan::graph {
namespace {

constexpr PyTorchVersion kRefusesLongBlocks{2, 15};

// Returns whether `bytes` of addresses from this block on are free or unmapped.
bool HasRoom(AllocatorState& state, BlockId first, int64_t bytes) {
  int64_t room = 0;
  BlockId id = first;
  BlockId last = first;
  while (room < bytes && id != kNoBlock && state.At(id).IsFree()) {
    room += state.At(id).size;
    last = id;
    id = state.At(id).next;
  }
  if (room >= bytes) return true;
  if (id == kNoBlock && !state.At(last).is_mapped) {
    const int64_t page = state.At(state.At(first).pool).page;
    NoteReserve(
        state.memory, page,
        ReserveBytes(state.memory, page, state.memory.total) + bytes - room);
  }
  return false;
}

// Finds the free or unmapped block at the lowest address with room for `bytes`
// from there on, or makes a segment. Returns none where a whole segment is too
// short.
BlockId FindRoom(AllocatorState& state, PoolId pool_id, int64_t bytes) {
  Pool& pool = state.At(pool_id);
  for (const auto& [address, unmapped] : pool.unmapped) {
    BlockId first = unmapped;
    const BlockId previous = state.At(first).previous;
    if (previous != kNoBlock && state.At(previous).IsFree()) first = previous;
    if (HasRoom(state, first, bytes)) return first;
  }
  const int64_t reserve =
      ReserveBytes(state.memory, pool.page, state.memory.total);
  if (state.config.version >= kRefusesLongBlocks && bytes > reserve) {
    // The segment is made, found to be too short and dropped.
    DropSegment(state, NewSegment(state, reserve, true));
    NoteReserve(state.memory, pool.page, bytes);
    return kNoBlock;
  }
  const SegmentId segment = NewSegment(state, reserve, true);
  const Block all = {.size = reserve,
                     .address = state.At(segment).address,
                     .segment = segment,
                     .pool = pool_id,
                     .is_mapped = false};
  const BlockId id = NewBlock(state, all);
  pool.unmapped.insert({all.address, id});
  return id;
}

// Maps the pages of an unmapped block that hold its first `bytes`, and merges
// them with free neighbours. Returns whether the device had the memory.
bool MapPages(AllocatorState& state, BlockId id, int64_t bytes) {
  const PoolId pool_id = state.At(id).pool;
  const int64_t page = state.At(pool_id).page;
  const int64_t mapped = (bytes + page - 1) / page * page;
  if (!TakeBytes(state.memory, mapped)) return false;
  state.memory.reserved += mapped;
  state.At(pool_id).unmapped.erase({state.At(id).address, id});
  state.At(id).is_mapped = true;
  if (mapped < state.At(id).size) {
    Block rest = state.At(id);
    rest.address += mapped;
    rest.size -= mapped;
    rest.is_mapped = false;
    const BlockId rest_id = NewBlock(state, rest);
    Link(state, rest_id, id, rest.next);
    state.At(id).size = mapped;
    state.At(pool_id).unmapped.insert({rest.address, rest_id});
  } else if (state.At(id).next == kNoBlock) {
    // The segment ends here, and would have room behind on a larger device.
    NoteReserve(state.memory, page,
                ReserveBytes(state.memory, page, state.memory.total) + 1);
  }
  MergeWith(state, id, state.At(id).previous);
  MergeWith(state, id, state.At(id).next);
  AddFree(state, id);
  return true;
}

// Unmaps the whole pages within a free block. Returns their bytes.
int64_t UnmapPages(AllocatorState& state, BlockId id) {
  const Block block = state.At(id);
  const int64_t page = state.At(block.pool).page;
  const int64_t base = state.At(block.segment).address;
  const int64_t begin = base + (block.address - base + page - 1) / page * page;
  const int64_t end = base + (block.address + block.size - base) / page * page;
  if (begin >= end) return 0;
  RemoveFree(state, id);
  const auto keep = [&](int64_t from, int64_t to, BlockId previous,
                        BlockId next) {
    if (from >= to) return;
    Block part = block;
    part.address = from;
    part.size = to - from;
    const BlockId part_id = NewBlock(state, part);
    Link(state, part_id, previous, next);
    AddFree(state, part_id);
  };
  keep(block.address, begin, block.previous, id);
  keep(end, block.address + block.size, id, block.next);
  Block& unmapped = state.At(id);
  unmapped.address = begin;
  unmapped.size = end - begin;
  unmapped.is_mapped = false;
  MergeWith(state, id, unmapped.previous);
  MergeWith(state, id, state.At(id).next);
  state.At(block.pool).unmapped.insert({state.At(id).address, id});
  --state.At(state.At(block.pool).owner).segments;
  state.memory.used_bytes -= end - begin;
  state.memory.reserved -= end - begin;
  return end - begin;
}

}  // namespace

BlockId MapBlock(AllocatorState& state, PoolId pool, int64_t rounded_bytes) {
  BlockId id = FindRoom(state, pool, rounded_bytes);
  if (id == kNoBlock) return kNoBlock;
  if (!state.At(id).is_mapped &&
      !MapPages(state, id, std::min(state.At(id).size, rounded_bytes))) {
    return kNoBlock;
  }
  while (state.At(id).size < rounded_bytes) {
    const int64_t missing = rounded_bytes - state.At(id).size;
    const BlockId next = state.At(id).next;
    if (!MapPages(state, next, std::min(state.At(next).size, missing))) {
      return kNoBlock;
    }
    id = next;
  }
  RemoveFree(state, id);
  ++state.At(state.At(pool).owner).segments;
  return id;
}

int64_t UnmapFreePages(AllocatorState& state, PoolId pool_id) {
  std::vector<BlockId> free;
  const FreeList& list = state.At(pool_id).free;
  for (auto at = list.Begin(); !list.IsEnd(at); at = list.Next(at)) {
    const BlockId id = list.At(at).block;
    if (state.At(state.At(id).segment).is_expandable) free.push_back(id);
  }
  int64_t bytes = 0;
  for (const BlockId id : free) bytes += UnmapFreeBlock(state, id);
  return bytes;
}

int64_t UnmapFreeBlock(AllocatorState& state, BlockId id) {
  const int64_t bytes = UnmapPages(state, id);
  const Block& block = state.At(id);
  if (block.IsSplit() || block.is_mapped) return bytes;
  state.At(block.pool).unmapped.erase({block.address, id});
  DropSegment(state, block.segment);
  DropBlock(state, id);
  return bytes;
}

bool GrowSegments(AllocatorState& state, int64_t total_bytes) {
  std::vector<BlockId> ends;
  std::vector<char> has_segment(state.pools.size(), 0);
  for (const BlockId id : ExistingBlocks(state)) {
    const Block& block = state.At(id);
    const bool is_end = block.next == kNoBlock;
    if (!is_end || !state.At(block.segment).is_expandable) continue;
    char& has_other = has_segment[static_cast<size_t>(block.pool)];
    if (block.is_mapped || has_other != 0) return false;
    has_other = 1;
    ends.push_back(id);
  }
  for (const BlockId id : ends) {
    const int64_t page = state.At(state.At(id).pool).page;
    const int64_t bytes = ReserveBytes(state.memory, page, total_bytes) -
                          ReserveBytes(state.memory, page, state.memory.total);
    state.At(id).size += bytes;
    state.At(state.At(id).segment).size += bytes;
    // Later segments of the pool lie above.
    state.next_address += bytes;
  }
  return true;
}

}  // namespace acplan::graph
