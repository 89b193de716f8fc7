#include "graph/run/peak_layout.h"

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

// `storages`: by block of the allocator.
std::vector<Hole> HolesOf(const AllocatorState& state,
                          const std::vector<StorageId>& storages) {
  const auto storage_of = [&](BlockId id) {
    return id == kNoBlock || !state.At(id).is_allocated
               ? StorageId(kNone)
               : storages[static_cast<size_t>(id)];
  };
  std::vector<Hole> holes;
  for (const BlockId id : ExistingBlocks(state)) {
    const Block& block = state.At(id);
    if (!block.is_mapped || !block.IsFree()) continue;
    const int64_t bytes = block.size - ReleasableBytes(state, block);
    if (bytes == 0) continue;
    holes.push_back(
        {.bytes = bytes,
         .neighbours = {storage_of(block.previous), storage_of(block.next)}});
  }
  std::ranges::stable_sort(holes, std::ranges::greater(), &Hole::bytes);
  return holes;
}

// `storages`, `events`: by block of the allocator.
std::vector<BlockUse> BlocksOf(const AllocatorState& state,
                               const std::vector<StorageId>& storages,
                               const std::vector<int64_t>& events) {
  std::vector<BlockUse> blocks;
  for (const BlockId id : ExistingBlocks(state)) {
    const Block& block = state.At(id);
    if (!block.is_mapped) continue;
    const Segment& segment = state.At(block.segment);
    BlockUse use{.segment = segment.number,
                 .offset = block.address - segment.address,
                 .bytes = block.size};
    if (block.is_allocated) {
      use.storage = storages[static_cast<size_t>(id)];
      use.event = events[static_cast<size_t>(id)];
    } else if (block.IsFree()) {
      use.hole_bytes = block.size - ReleasableBytes(state, block);
    }
    blocks.push_back(use);
  }
  std::ranges::sort(blocks, {}, [](const BlockUse& use) {
    return std::pair(use.segment, use.offset);
  });
  return blocks;
}

}  // namespace

int64_t PeakLayout::HoleBytes() const {
  int64_t bytes = 0;
  for (const Hole& hole : holes) bytes += hole.bytes;
  return bytes;
}

PeakLayout LayoutAtPeak(const TrainingRun& run, const AllocatorConfig& config,
                        int64_t device_bytes, const RunOutcome& outcome) {
  const Replay& replay = outcome.replay;
  PeakLayout layout{.event = replay.failure ? replay.failure->event
                                            : replay.peak_event};
  EventRunner runner(run.events, config, device_bytes);
  const CachingAllocator& allocator = runner.allocator();
  std::vector<StorageId> storages;
  std::vector<int64_t> events;
  for (int64_t k = 0; k <= layout.event; ++k) {
    BlockId block = kNoBlock;
    runner.Run(static_cast<size_t>(k), block);
    if (block == kNoBlock) continue;
    storages.resize(std::max(storages.size(), allocator.state().blocks.size()),
                    kNone);
    events.resize(storages.size(), -1);
    events[static_cast<size_t>(block)] = k;
    const AllocatorEvent& event = run.events.events[static_cast<size_t>(k)];
    storages[static_cast<size_t>(block)] =
        run.storages[static_cast<size_t>(event.block)];
  }
  storages.resize(allocator.state().blocks.size(), kNone);
  events.resize(storages.size(), -1);
  layout.allocated_bytes = allocator.counts().allocated_bytes;
  layout.reserved_bytes = allocator.counts().reserved_bytes;
  layout.segments = SegmentsOf(allocator);
  layout.holes = HolesOf(allocator.state(), storages);
  layout.blocks = BlocksOf(allocator.state(), storages, events);
  return layout;
}

}  // namespace acplan::graph
