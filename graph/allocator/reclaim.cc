#include "graph/allocator/reclaim.h"

#include <algorithm>
#include <vector>

#include "graph/allocator/blocks.h"
#include "graph/allocator/expandable_segments.h"

namespace acplan::graph {
namespace {

// Before, a private pool that serves requests was taken for a capture.
constexpr PyTorchVersion kTellsCaptures{2, 13};

bool IsExpandable(const AllocatorState& state, BlockId id) {
  return state.At(state.At(id).segment).is_expandable;
}

// Gives the segment of a free block, which fills it, back to the device.
int64_t ReleaseSegment(AllocatorState& state, BlockId id) {
  RemoveFree(state, id);
  const Block& block = state.At(id);
  const int64_t size = block.size;
  --state.At(state.At(block.pool).owner).segments;
  state.memory.used_bytes -=
      (size + kDevicePage - 1) / kDevicePage * kDevicePage;
  state.memory.reserved -= size;
  DropSegment(state, block.segment);
  DropBlock(state, id);
  return size;
}

int64_t Age(const AllocatorState& state, BlockId id) {
  return state.At(kDefaultOwner).searches[1] - state.At(id).birth;
}

// The unsplit free blocks of all large pools but private ones.
std::vector<BlockId> UnsplitLarge(const AllocatorState& state) {
  std::vector<BlockId> blocks;
  for (const Pool& pool : state.pools) {
    if (pool.is_small || pool.owner != kDefaultOwner) continue;
    for (auto at = pool.free.Begin(); !pool.free.IsEnd(at);
         at = pool.free.Next(at)) {
      const BlockId id = pool.free.At(at).block;
      if (!state.At(id).IsSplit()) blocks.push_back(id);
    }
  }
  return blocks;
}

}  // namespace

int64_t CollectGarbage(AllocatorState& state) {
  if (!IsAboveCollection(state.memory)) return 0;
  std::vector<BlockId> candidates = UnsplitLarge(state);
  int64_t total_age = 0;
  for (const BlockId id : candidates) total_age += Age(state, id);
  auto count = static_cast<int64_t>(candidates.size());
  const int64_t reserved = state.memory.reserved;
  int64_t bytes = 0;
  bool has_released = true;
  while (has_released && count > 0) {
    if (bytes > 0 && !IsAboveCollection(state.memory)) break;
    const double least_age =
        static_cast<double>(total_age) / static_cast<double>(count);
    has_released = false;
    std::erase_if(candidates, [&](BlockId id) {
      const int64_t age = Age(state, id);
      if (IsExpandable(state, id) || static_cast<double>(age) < least_age) {
        return false;
      }
      has_released = true;
      total_age -= age;
      --count;
      ReleaseSegment(state, id);
      return true;
    });
    bytes = reserved - state.memory.reserved;
  }
  return bytes;
}

int64_t ReleaseOversize(AllocatorState& state, PoolId pool_id,
                        int64_t rounded_bytes, bool& is_enough) {
  is_enough = false;
  const int64_t max_split = state.config.max_split_bytes;
  if (max_split == AllocatorConfig::kUnlimited) return 0;
  const FreeList& list = state.At(pool_id).free;
  const int64_t wanted_bytes = std::max(rounded_bytes, max_split);
  FreeList::Position at = list.LowerBound({.size = wanted_bytes});
  if (!list.IsEnd(at) && !IsExpandable(state, list.At(at).block)) {
    is_enough = true;
    return ReleaseSegment(state, list.At(at).block);
  }
  int64_t bytes = 0;
  while (bytes < wanted_bytes && !list.IsBegin(at)) {
    at = list.Previous(at);
    const FreeBlock block = list.At(at);
    if (block.size < max_split) break;
    if (IsExpandable(state, block.block)) continue;
    bytes += ReleaseSegment(state, block.block);
    at = list.LowerBound(block);
  }
  is_enough = bytes >= wanted_bytes;
  return bytes;
}

bool IsCapturing(const AllocatorState& state) {
  if (state.config.version < kTellsCaptures) return !state.active.empty();
  return std::ranges::any_of(state.active, &ActivePool::is_capture);
}

int64_t ReleaseCached(AllocatorState& state) {
  const bool has_default = !IsCapturing(state);
  if (has_default) ReturnWaiting(state);
  int64_t bytes = 0;
  for (size_t p = 0; p < state.pools.size(); ++p) {
    const OwnerId owner = state.pools[p].owner;
    const bool is_released =
        owner == kDefaultOwner ? has_default : state.At(owner).users == 0;
    if (!is_released) continue;
    const FreeList& list = state.pools[p].free;
    std::vector<BlockId> whole;
    for (auto at = list.Begin(); !list.IsEnd(at); at = list.Next(at)) {
      const BlockId id = list.At(at).block;
      if (!IsExpandable(state, id) && !state.At(id).IsSplit()) {
        whole.push_back(id);
      }
    }
    for (const BlockId id : whole) bytes += ReleaseSegment(state, id);
    bytes += UnmapFreePages(state, PoolId{static_cast<int32_t>(p)});
  }
  for (PoolOwner& owner : state.owners) {
    owner.is_gone |= owner.users == 0 && owner.segments == 0;
  }
  return bytes;
}

int64_t ReleaseAt(AllocatorState& state, int64_t address) {
  for (const BlockId id : ExistingBlocks(state)) {
    const Block& block = state.At(id);
    if (!block.is_mapped || !block.IsFree() || address < block.address ||
        address >= block.address + block.size) {
      continue;
    }
    if (IsExpandable(state, id)) return UnmapFreeBlock(state, id);
    const bool is_whole = block.address == address && !block.IsSplit();
    return is_whole ? ReleaseSegment(state, id) : 0;
  }
  return 0;
}

}  // namespace acplan::graph
