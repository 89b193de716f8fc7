#include "graph/allocator/allocator_replay.h"

#include <algorithm>
#include <cstddef>

#include "graph/allocator/blocks.h"

namespace acplan::graph {

EventRunner::EventRunner(const AllocatorEvents& events,
                         const AllocatorConfig& config, int64_t device_bytes)
    : events_(events),
      allocator_(config, device_bytes),
      blocks_(events.block_ids.size(), kNoBlock) {
  if (events.start.empty()) return;
  for (const SegmentLayout& segment : events.start) {
    const std::vector<BlockId> blocks = allocator_.AddSegment(segment);
    for (size_t k = 0; k < blocks.size(); ++k) {
      const int32_t place = segment.blocks[k].block;
      if (place < 0) continue;
      blocks_[static_cast<size_t>(place)] = blocks[k];
      SetPlace(blocks[k], place);
    }
  }
  allocator_.FitDevice();
}

BlockId& EventRunner::At(const AllocatorEvent& event) {
  return blocks_[static_cast<size_t>(event.block)];
}

void EventRunner::SetPlace(BlockId block, int32_t place) {
  const auto index = static_cast<size_t>(block);
  if (index >= places_.size()) places_.resize(index + 1, -1);
  places_[index] = place;
}

bool EventRunner::Run(size_t index, BlockId& block) {
  const AllocatorEvent& event = events_.events[index];
  block = kNoBlock;
  using enum AllocatorEvent::Kind;
  switch (event.kind) {
    case kAllocate:
      if (event.bytes == 0) return true;
      block = allocator_.Allocate(event.bytes, event.stream);
      At(event) = block;
      if (block == kNoBlock) return false;
      SetPlace(block, event.block);
      return true;
    case kFree:
      if (At(event) != kNoBlock) allocator_.Free(At(event));
      At(event) = kNoBlock;
      return true;
    case kRecordStream:
      if (At(event) != kNoBlock) {
        allocator_.RecordStream(At(event), event.stream);
      }
      return true;
    case kEmptyCache:
      allocator_.EmptyCache();
      return true;
    case kBeginCapture:
    case kBeginPool:
      allocator_.BeginPool(event.pool, event.kind == kBeginCapture);
      return true;
    case kEndPool:
      allocator_.EndPool(event.pool);
      return true;
    case kReleasePool:
      allocator_.ReleasePool(event.pool);
      return true;
  }
  return true;
}

namespace {

std::optional<int64_t> PrivatePoolOf(const AllocatorState& state, PoolId pool) {
  const OwnerId owner = state.At(pool).owner;
  if (owner == kDefaultOwner) return std::nullopt;
  return state.At(owner).name;
}

}  // namespace

std::vector<SegmentUse> SegmentsOf(const CachingAllocator& allocator) {
  const AllocatorState& state = allocator.state();
  std::vector<SegmentUse> segments;
  for (const BlockId id : ExistingBlocks(state)) {
    const Block& first = state.At(id);
    const bool begins =
        first.previous == kNoBlock || !state.At(first.previous).is_mapped;
    if (!first.is_mapped || !begins) continue;
    const Segment& segment = state.At(first.segment);
    SegmentUse use = {.number = segment.number,
                      .offset = first.address - segment.address,
                      .stream = state.At(first.pool).stream,
                      .private_pool = PrivatePoolOf(state, first.pool),
                      .is_small = state.At(first.pool).is_small,
                      .is_expandable = segment.is_expandable};
    for (const Block* block = &first; block->is_mapped;
         block = &state.At(block->next)) {
      use.bytes += block->size;
      if (block->is_allocated) {
        use.allocated_bytes += block->size;
        ++use.blocks;
      } else if (block->IsFree()) {
        use.largest_free_bytes = std::max(use.largest_free_bytes, block->size);
      }
      if (block->next == kNoBlock) break;
    }
    segments.push_back(use);
  }
  std::ranges::sort(segments, [](const SegmentUse& a, const SegmentUse& b) {
    return a.number != b.number ? a.number < b.number : a.offset < b.offset;
  });
  return segments;
}

Replay ReplayEvents(
    const AllocatorEvents& events, const AllocatorConfig& config,
    int64_t device_bytes,
    const std::function<bool(size_t, const EventRunner&, BlockId)>& goes_on) {
  EventRunner runner(events, config, device_bytes);
  const CachingAllocator& allocator = runner.allocator();
  Replay replay;
  BlockId block = kNoBlock;
  for (size_t k = 0; k < events.events.size(); ++k) {
    const AllocatorEvent& event = events.events[k];
    const int64_t peak = allocator.counts().peak_reserved_bytes;
    const bool fits = runner.Run(k, block);
    const AllocatorCounts& counts = allocator.counts();
    if (counts.peak_reserved_bytes > peak) {
      replay.peak_event = static_cast<int64_t>(k);
    }
    if (event.kind == AllocatorEvent::Kind::kAllocate && event.bytes > 0 &&
        allocator.reclaim()) {
      replay.reclaims.push_back(*allocator.reclaim());
      replay.reclaims.back().event = static_cast<int64_t>(k);
    }
    const bool ends = goes_on && !goes_on(k, runner, block);
    if (fits && !ends) continue;
    if (fits) break;
    replay.failure =
        ReplayFailure{.event = static_cast<int64_t>(k),
                      .bytes = event.bytes,
                      .stream = event.stream,
                      .allocated_bytes = counts.allocated_bytes,
                      .reserved_bytes = counts.reserved_bytes,
                      .free_bytes = allocator.state().memory.total -
                                    allocator.device_bytes()};
    break;
  }
  replay.counts = allocator.counts();
  replay.next_device_bytes = allocator.next_device_bytes();
  return replay;
}

std::vector<SegmentUse> SegmentsAtPeak(const AllocatorEvents& events,
                                       const AllocatorConfig& config,
                                       int64_t device_bytes,
                                       const Replay& replay) {
  const int64_t last =
      replay.failure ? replay.failure->event : replay.peak_event;
  EventRunner runner(events, config, device_bytes);
  BlockId block = kNoBlock;
  for (int64_t k = 0; k <= last; ++k) {
    runner.Run(static_cast<size_t>(k), block);
  }
  return SegmentsOf(runner.allocator());
}

}  // namespace acplan::graph
