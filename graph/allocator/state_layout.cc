#include "graph/allocator/state_layout.h"

#include <algorithm>
#include <cstddef>

#include "graph/allocator/blocks.h"

// Where blocks lie is decided by sizes, by the order of addresses and of segments, and by
// the order of free blocks. A layout states these and no address, as new segments have
// ever higher ones.

namespace acplan::graph {
namespace {

constexpr int64_t kFree = -1;
constexpr int64_t kUnmapped = -2;
constexpr int64_t kWaits = -3;
// Added to the content of a block that another stream uses.
constexpr int64_t kUsedElsewhere = int64_t{1} << 32;

// Returns the blocks in the order of their addresses.
std::vector<BlockId> BlocksByAddress(const AllocatorState& state) {
  std::vector<BlockId> firsts;
  for (size_t k = 0; k < state.blocks.size(); ++k) {
    const Block& block = state.blocks[k];
    if (block.Exists() && block.previous == kNoBlock) {
      firsts.push_back(BlockId(k));
    }
  }
  std::ranges::sort(firsts, {},
                    [&](BlockId id) { return state.At(id).address; });
  std::vector<BlockId> blocks;
  blocks.reserve(state.blocks.size());
  for (const BlockId first : firsts) {
    for (BlockId id = first; id != kNoBlock; id = state.At(id).next) {
      blocks.push_back(id);
    }
  }
  return blocks;
}

int64_t ContentOf(const Block& block, BlockId id,
                  const std::vector<int32_t>& contents) {
  if (!block.is_mapped) return kUnmapped;
  if (block.IsFree()) return kFree;
  if (!block.is_allocated) return kWaits;
  return contents[static_cast<size_t>(id)] +
         (block.is_used_elsewhere ? kUsedElsewhere : 0);
}

void AddAges(const AllocatorState& state, const std::vector<BlockId>& blocks,
             std::vector<int64_t>& layout) {
  std::vector<int64_t> place(state.blocks.size(), 0);
  for (size_t k = 0; k < blocks.size(); ++k) {
    place[static_cast<size_t>(blocks[k])] = static_cast<int64_t>(k);
  }
  std::vector<BlockId> by_age = blocks;
  std::ranges::sort(by_age, {},
                    [&](BlockId id) { return state.At(id).serial; });
  const bool collects = state.config.garbage_collection_threshold > 0;
  for (const BlockId id : by_age) {
    // In 2.12 the oldest of equal blocks serves.
    if (state.config.version == PyTorchVersion{2, 12}) {
      layout.push_back(place[static_cast<size_t>(id)]);
    }
    const Block& block = state.At(id);
    if (!collects || !block.IsFree()) continue;
    const Pool& pool = state.At(block.pool);
    layout.push_back(place[static_cast<size_t>(id)]);
    layout.push_back(state.At(pool.owner).searches[pool.is_small ? 0 : 1] -
                     block.birth);
  }
}

// Private pools, whose memory may be given back once they have no user.
void AddPrivatePools(const AllocatorState& state,
                     std::vector<int64_t>& layout) {
  for (size_t k = 1; k < state.owners.size(); ++k) {
    const PoolOwner& owner = state.owners[k];
    layout.insert(layout.end(), {owner.name, owner.users, owner.segments,
                                 owner.is_gone ? 1 : 0});
  }
  for (const ActivePool& active : state.active) {
    layout.push_back(static_cast<int64_t>(active.owner));
    layout.push_back(active.is_capture ? 1 : 0);
  }
}

}  // namespace

std::vector<int64_t> StateLayout(const AllocatorState& state,
                                 const std::vector<int32_t>& contents) {
  const std::vector<BlockId> blocks = BlocksByAddress(state);
  std::vector<int64_t> layout(2 * blocks.size());
  auto entry = layout.begin();
  for (const BlockId id : blocks) {
    const Block& block = state.At(id);
    const int64_t begins_segment = block.previous == kNoBlock ? 1 : 0;
    const bool is_open_end = block.next == kNoBlock && !block.is_mapped;
    const auto pool = static_cast<int64_t>(block.pool);
    *entry++ = (is_open_end ? 0 : 2 * block.size) + begins_segment;
    *entry++ = (pool << 34) + ContentOf(block, id, contents);
  }
  const bool has_ages = state.config.version == PyTorchVersion{2, 12} ||
                        state.config.garbage_collection_threshold > 0;
  if (has_ages) AddAges(state, blocks, layout);
  AddPrivatePools(state, layout);
  return layout;
}

}  // namespace acplan::graph
