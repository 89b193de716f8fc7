#include "graph/allocator/allocator_replay.h"

#include <algorithm>
#include <cstddef>

#include "graph/allocator/blocks.h"
#include "graph/allocator/device_memory.h"

// The least device. A run on a device of d bytes asks for d only in comparisons
// that come out one way below some size and the other way from that size on.
// The allocator keeps the smallest such size above d, n: on every device from d
// to n - 1 all comparisons come out alike, so the run is the same, and if it
// fails on d it fails on all of them. So the next candidate is n. No device
// below the bytes of the blocks that live at once can do.

namespace acplan::graph {
namespace {

using Kind = AllocatorEvent::Kind;

class Runner {
 public:
  Runner(const AllocatorEvents& events, const AllocatorConfig& config,
         int64_t device_bytes)
      : events_(events),
        allocator_(config, device_bytes),
        blocks_(events.block_ids.size(), kNoBlock) {}

  const CachingAllocator& allocator() const { return allocator_; }

  // Runs an event. Returns whether it does not fail; `block` is what it
  // allocated, if anything.
  bool Run(size_t index, BlockId& block) {
    const AllocatorEvent& event = events_.events[index];
    block = kNoBlock;
    switch (event.kind) {
      case Kind::kAllocate:
        if (event.bytes == 0) return true;
        block = allocator_.Allocate(event.bytes, event.stream);
        At(event) = block;
        return block != kNoBlock;
      case Kind::kFree:
        if (At(event) != kNoBlock) allocator_.Free(At(event));
        return true;
      case Kind::kRecordStream:
        if (At(event) != kNoBlock) {
          allocator_.RecordStream(At(event), event.stream);
        }
        return true;
      case Kind::kEmptyCache:
        allocator_.EmptyCache();
        return true;
    }
    return true;
  }

 private:
  BlockId& At(const AllocatorEvent& event) {
    return blocks_[static_cast<size_t>(event.block)];
  }

  const AllocatorEvents& events_;
  CachingAllocator allocator_;
  std::vector<BlockId> blocks_;
};

// The outcome of a run of which no more is asked.
struct Trial {
  bool fits = false;
  int64_t next_device_bytes = 0;
  int64_t events = 0;
};

Trial Try(const AllocatorEvents& events, const AllocatorConfig& config,
          int64_t device_bytes) {
  Runner runner(events, config, device_bytes);
  BlockId block = kNoBlock;
  Trial trial;
  trial.fits = true;
  for (size_t k = 0; k < events.events.size() && trial.fits; ++k) {
    trial.fits = runner.Run(k, block);
    ++trial.events;
  }
  trial.next_device_bytes = runner.allocator().next_device_bytes();
  return trial;
}

// The rounded bytes of the blocks that live at once, at most.
int64_t LeastBytes(const AllocatorEvents& events,
                   const AllocatorConfig& config) {
  std::vector<int64_t> sizes(events.block_ids.size(), 0);
  int64_t bytes = 0;
  int64_t most = 1;
  for (const AllocatorEvent& event : events.events) {
    if (event.kind == Kind::kAllocate && event.bytes > 0) {
      int64_t& size = sizes[static_cast<size_t>(event.block)];
      size = RoundedBytes(config, event.bytes);
      bytes += size;
      most = std::max(most, bytes);
    } else if (event.kind == Kind::kFree) {
      bytes -= sizes[static_cast<size_t>(event.block)];
    }
  }
  return most;
}

// Halves what is left between a device that fails and the largest one.
std::optional<LeastDevice> Halve(const AllocatorEvents& events,
                                 const AllocatorConfig& config, int64_t low,
                                 int64_t runs) {
  int64_t high = low;
  bool fits = false;
  while (!fits && high < kLargestDevice) {
    low = high;
    high = std::min(2 * high, kLargestDevice);
    fits = Try(events, config, high).fits;
    ++runs;
  }
  if (!fits) return std::nullopt;
  while (high - low > kDevicePage) {
    const int64_t middle = low + (high - low) / 2 / kDevicePage * kDevicePage;
    const int64_t device = middle == low ? low + kDevicePage : middle;
    (Try(events, config, device).fits ? high : low) = device;
    ++runs;
  }
  return LeastDevice{.bytes = high, .is_least = false, .runs = runs};
}

}  // namespace

std::vector<SegmentUse> SegmentsOf(const CachingAllocator& allocator) {
  const AllocatorState& state = allocator.state();
  std::vector<char> is_unused(state.blocks.size(), 0);
  for (const BlockId id : state.unused_blocks) {
    is_unused[static_cast<size_t>(id)] = 1;
  }
  std::vector<SegmentUse> segments;
  for (size_t k = 0; k < state.blocks.size(); ++k) {
    const Block& first = state.blocks[k];
    const bool begins = first.previous == kNoBlock ||
                        !state.At(first.previous).is_mapped;
    if (is_unused[k] != 0 || !first.is_mapped || !begins) continue;
    const Segment& segment = state.At(first.segment);
    SegmentUse use = {.number = segment.number,
                      .offset = first.address - segment.address,
                      .stream = allocator.StreamOf(first.pool),
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
    const std::function<void(size_t, const CachingAllocator&, BlockId)>& use) {
  Runner runner(events, config, device_bytes);
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
    if (event.kind == Kind::kAllocate && event.bytes > 0 &&
        allocator.reclaim()) {
      replay.reclaims.push_back(*allocator.reclaim());
      replay.reclaims.back().event = static_cast<int64_t>(k);
    }
    if (use) use(k, allocator, block);
    if (fits) continue;
    replay.failure = ReplayFailure{
        .event = static_cast<int64_t>(k),
        .bytes = event.bytes,
        .stream = event.stream,
        .allocated_bytes = counts.allocated_bytes,
        .reserved_bytes = counts.reserved_bytes,
        .free_bytes = allocator.state().memory.total - allocator.device_bytes()};
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
  Runner runner(events, config, device_bytes);
  BlockId block = kNoBlock;
  for (int64_t k = 0; k <= last; ++k) {
    runner.Run(static_cast<size_t>(k), block);
  }
  return SegmentsOf(runner.allocator());
}

std::optional<LeastDevice> FindLeastDevice(const AllocatorEvents& events,
                                           const AllocatorConfig& config,
                                           int64_t most_events) {
  LeastDevice least;
  int64_t device = LeastBytes(events, config);
  int64_t spent = 0;
  while (device <= kLargestDevice) {
    const Trial trial = Try(events, config, device);
    ++least.runs;
    spent += trial.events;
    if (trial.fits) {
      least.bytes = device;
      return least;
    }
    if (spent > most_events) {
      return Halve(events, config, device, least.runs);
    }
    device = trial.next_device_bytes;
  }
  return std::nullopt;
}

}  // namespace acplan::graph
