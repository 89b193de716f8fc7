#include "graph/allocator/layout_after.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "graph/allocator/allocator_state.h"
#include "graph/allocator/blocks.h"
#include "graph/allocator/caching_allocator.h"

namespace acplan::graph {
namespace {

// Returns the bytes of a free block that can be given back.
int64_t ReleasableBytes(const AllocatorState& state, const Block& block) {
  const Segment& segment = state.At(block.segment);
  if (!segment.is_expandable) return block.IsSplit() ? 0 : block.size;
  const int64_t page = state.At(block.pool).page;
  const int64_t begin = block.address - segment.address;
  const int64_t first = (begin + page - 1) / page;
  const int64_t end = (begin + block.size) / page;
  return std::max<int64_t>(end - first, 0) * page;
}

// `places`: in the list, by block of the allocator.
std::vector<BlockHole> HolesOf(const AllocatorState& state,
                               const std::vector<int32_t>& places) {
  const auto place_of = [&](BlockId id) {
    return id == kNoBlock || !state.At(id).is_allocated
               ? -1
               : places[static_cast<size_t>(id)];
  };
  std::vector<BlockHole> holes;
  for (const BlockId id : ExistingBlocks(state)) {
    const Block& block = state.At(id);
    if (!block.is_mapped || !block.IsFree()) continue;
    const int64_t bytes = block.size - ReleasableBytes(state, block);
    if (bytes == 0) continue;
    holes.push_back(
        {.bytes = bytes,
         .neighbours = {place_of(block.previous), place_of(block.next)}});
  }
  std::ranges::stable_sort(holes, std::ranges::greater(), &BlockHole::bytes);
  return holes;
}

// `places`: as above.
std::vector<BlockPlace> BlocksOf(const AllocatorState& state,
                                 const std::vector<int32_t>& places) {
  std::vector<BlockPlace> blocks;
  for (const BlockId id : ExistingBlocks(state)) {
    const Block& block = state.At(id);
    if (!block.is_mapped) continue;
    const Segment& segment = state.At(block.segment);
    BlockPlace place{.segment = segment.number,
                     .offset = block.address - segment.address,
                     .bytes = block.size};
    if (block.is_allocated) {
      place.block = places[static_cast<size_t>(id)];
    } else if (block.IsFree()) {
      place.hole_bytes = block.size - ReleasableBytes(state, block);
    }
    blocks.push_back(place);
  }
  std::ranges::sort(blocks, {}, [](const BlockPlace& place) {
    return std::pair(place.segment, place.offset);
  });
  return blocks;
}

}  // namespace

int64_t MemoryLayout::HoleBytes() const {
  int64_t bytes = 0;
  for (const BlockHole& hole : holes) bytes += hole.bytes;
  return bytes;
}

MemoryLayout LayoutAfter(const AllocatorEvents& events,
                         const AllocatorConfig& config, int64_t device_bytes,
                         int64_t last) {
  EventRunner runner(events, config, device_bytes);
  const CachingAllocator& allocator = runner.allocator();
  BlockId block = kNoBlock;
  for (int64_t k = 0; k <= last; ++k) {
    runner.Run(static_cast<size_t>(k), block);
  }
  const std::vector<int32_t>& places = runner.places();
  return {.allocated_bytes = allocator.counts().allocated_bytes,
          .reserved_bytes = allocator.counts().reserved_bytes,
          .segments = SegmentsOf(allocator),
          .holes = HolesOf(allocator.state(), places),
          .blocks = BlocksOf(allocator.state(), places)};
}

}  // namespace acplan::graph
