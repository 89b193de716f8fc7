#include "graph/allocator/set_up.h"

#include <algorithm>

#include "graph/allocator/blocks.h"

namespace acplan::graph {
namespace {

int64_t RoundToPages(int64_t bytes) {
  return (bytes + kDevicePage - 1) / kDevicePage * kDevicePage;
}

int64_t MappedBytes(const SegmentLayout& layout) {
  int64_t bytes = 0;
  for (const BlockLayout& block : layout.blocks) {
    if (block.is_mapped) bytes += block.bytes;
  }
  return bytes;
}

int64_t AllBytes(const SegmentLayout& layout) {
  int64_t bytes = 0;
  for (const BlockLayout& block : layout.blocks) bytes += block.bytes;
  return bytes;
}

// Returns the bytes of the pages without an allocated byte.
int64_t FreePages(const SegmentLayout& layout, int64_t page) {
  int64_t bytes = 0;
  int64_t begin = 0;
  for (const BlockLayout& block : layout.blocks) {
    const int64_t end = begin + block.bytes;
    if (block.is_mapped && block.block < 0) {
      const int64_t first = (begin + page - 1) / page;
      bytes += std::max<int64_t>(end / page - first, 0) * page;
    }
    begin = end;
  }
  return bytes;
}

}  // namespace

std::vector<BlockId> SetUpSegment(AllocatorState& state, PoolId pool,
                                  const SegmentLayout& layout) {
  const int64_t mapped = MappedBytes(layout);
  const int64_t blocks_bytes = AllBytes(layout);
  const int64_t page = state.At(pool).page;
  const int64_t size =
      layout.is_expandable
          ? std::max(ReserveBytes(state.memory, page, state.memory.total),
                     (blocks_bytes + page - 1) / page * page)
          : blocks_bytes;
  const int64_t next_address = state.next_address;
  state.next_address = layout.address;
  const SegmentId segment = NewSegment(state, size, layout.is_expandable);
  state.next_address = std::max(state.next_address, next_address);
  state.memory.reserved += mapped;
  state.memory.used_bytes +=
      layout.is_expandable ? mapped : RoundToPages(mapped);
  ++state.At(state.At(pool).owner).segments;

  std::vector<BlockLayout> pieces = layout.blocks;
  if (size > blocks_bytes) {
    if (!pieces.empty() && !pieces.back().is_mapped) {
      pieces.back().bytes += size - blocks_bytes;
    } else {
      pieces.push_back({.bytes = size - blocks_bytes, .is_mapped = false});
    }
  }
  std::vector<BlockId> blocks;
  int64_t address = layout.address;
  BlockId previous = kNoBlock;
  for (const BlockLayout& piece : pieces) {
    const bool is_allocated = piece.block >= 0;
    const BlockId id =
        NewBlock(state, {.size = piece.bytes,
                         .address = address,
                         .asked_bytes = is_allocated ? piece.asked_bytes : 0,
                         .segment = segment,
                         .pool = pool,
                         .is_allocated = is_allocated,
                         .is_mapped = piece.is_mapped});
    Link(state, id, previous, kNoBlock);
    if (!piece.is_mapped) {
      state.At(pool).unmapped.insert({address, id});
    } else if (!is_allocated) {
      AddFree(state, id);
    }
    blocks.push_back(is_allocated ? id : kNoBlock);
    previous = id;
    address += piece.bytes;
  }
  blocks.resize(layout.blocks.size(), kNoBlock);
  return blocks;
}

int64_t BytesInUse(const AllocatorConfig& config,
                   const std::vector<SegmentLayout>& segments) {
  int64_t bytes = 0;
  for (const SegmentLayout& layout : segments) {
    const bool is_free = std::ranges::all_of(
        layout.blocks, [](const BlockLayout& b) { return b.block < 0; });
    if (layout.is_expandable) {
      const int64_t page =
          layout.is_small ? kDevicePage : config.large_segment_bytes;
      bytes += MappedBytes(layout) - FreePages(layout, page);
    } else if (!is_free) {
      bytes += RoundToPages(MappedBytes(layout));
    }
  }
  return bytes;
}

}  // namespace acplan::graph
