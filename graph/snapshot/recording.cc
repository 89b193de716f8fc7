#include "graph/snapshot/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <limits>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/snapshot/memory_state.h"
#include "graph/snapshot/start_layout.h"

// The snapshot has the memory at the end, and each event can be undone: the
// memory before a block was allocated is that without the block, before a
// segment was freed that with it. So the events are undone from the last one
// back, which leaves the memory at the beginning of the recording, and on the
// way each free finds the block that it freed.

namespace acplan::graph {
namespace {

using Kind = SnapshotEvent::Kind;

class Undo {
 public:
  Undo(const DeviceSnapshot& device, const AllocatorConfig& config)
      : config_(config) {
    for (const SnapshotSegment& segment : device.segments) {
      state_.ranges[segment.address] = {.bytes = segment.bytes,
                                        .stream = segment.stream,
                                        .is_small = segment.is_small,
                                        .is_expandable = segment.is_expandable,
                                        .private_pool = segment.private_pool};
      for (const SnapshotBlock& block : segment.blocks) {
        if (block.state == SnapshotBlock::State::kFree) continue;
        LiveBlock live = NewBlock(block.address, block.asked_bytes, block.line);
        live.bytes = block.bytes;
        state_.live[block.address] = live;
      }
    }
    state_.past_ranges = state_.ranges;
  }

  // Takes the event back and notes its block. Returns false if it contradicts
  // the memory behind it.
  bool Take(RecordedEvent& recorded) {
    const SnapshotEvent& event = recorded.event;
    switch (event.kind) {
      case Kind::kAllocate:
        return TakeAllocation(recorded);
      case Kind::kFreeCompleted: {
        if (!HasRoom(state_, event)) return false;
        // Its line is that of its allocation, if that is in the recording.
        const LiveBlock live = NewBlock(event.address, event.bytes, -1);
        recorded.block = live.block;
        state_.live[event.address] = live;
        return true;
      }
      case Kind::kFreeRequested: {
        const auto live = state_.live.find(event.address);
        if (live == state_.live.end()) return false;
        recorded.block = live->second.block;
        return true;
      }
      case Kind::kSegmentAllocate:
        return UndoSegmentAllocation(state_, event);
      case Kind::kSegmentFree:
      case Kind::kSegmentUnmap:
        return UndoRelease(state_, config_, event);
      case Kind::kSegmentMap:
        return UndoMap(state_, event);
      case Kind::kOutOfMemory:
        return true;
    }
    return false;
  }

  const MemoryState& state() const { return state_; }
  const std::vector<RecordedBlock>& blocks() const { return blocks_; }

 private:
  LiveBlock NewBlock(int64_t address, int64_t asked_bytes, int32_t line) {
    blocks_.push_back(
        {.address = address, .asked_bytes = asked_bytes, .line = line});
    return {.block = static_cast<int32_t>(blocks_.size() - 1),
            .asked_bytes = asked_bytes};
  }

  bool TakeAllocation(RecordedEvent& recorded) {
    const int64_t address = recorded.event.address;
    const auto live = state_.live.find(address);
    const SegmentRange* range = RangeAt(state_, address);
    if (live == state_.live.end() || range == nullptr ||
        recorded.event.bytes == 0) {
      return false;
    }
    recorded.block = live->second.block;
    recorded.private_pool = range->private_pool;
    RecordedBlock& block = blocks_[static_cast<size_t>(recorded.block)];
    block.line = recorded.event.line;
    block.asked_bytes = recorded.event.bytes;
    LearnSize(state_, config_, address);
    state_.live.erase(live);
    return true;
  }

  const AllocatorConfig& config_;
  MemoryState state_;
  std::vector<RecordedBlock> blocks_;
};

// Puts the blocks of the beginning first, in the order of their segments, and
// the others behind them in the order of their allocation.
void OrderBlocks(const std::vector<RecordedBlock>& blocks,
                 Recording& recording) {
  std::vector<int32_t> place(blocks.size(), -1);
  const auto put_block = [&](int32_t& block) {
    int32_t& now = place[static_cast<size_t>(block)];
    if (now < 0) {
      now = static_cast<int32_t>(recording.blocks.size());
      recording.blocks.push_back(blocks[static_cast<size_t>(block)]);
    }
    block = now;
  };
  for (SegmentLayout& segment : recording.start) {
    for (BlockLayout& block : segment.blocks) {
      if (block.block >= 0) put_block(block.block);
    }
  }
  recording.start_blocks = std::ssize(recording.blocks);
  for (RecordedEvent& event : recording.events) {
    if (event.block >= 0) put_block(event.block);
  }
}

int64_t MappedBytesOf(const std::vector<SegmentLayout>& segments) {
  int64_t bytes = 0;
  for (const SegmentLayout& segment : segments) {
    for (const BlockLayout& block : segment.blocks) {
      bytes += block.is_mapped ? block.bytes : 0;
    }
  }
  return bytes;
}

// Notes what was recorded of the device: its reserved bytes, retries, failures.
void CountRecorded(Recording& recording) {
  int64_t reserved = recording.start_reserved_bytes;
  recording.peak_reserved_bytes = reserved;
  bool has_released = false;
  for (const RecordedEvent& recorded : recording.events) {
    const SnapshotEvent& event = recorded.event;
    switch (event.kind) {
      case Kind::kSegmentAllocate:
      case Kind::kSegmentMap:
        reserved += event.bytes;
        recording.retries += has_released ? 1 : 0;
        has_released = false;
        break;
      case Kind::kSegmentFree:
      case Kind::kSegmentUnmap:
        reserved -= event.bytes;
        has_released = !event.is_cache_call;
        break;
      case Kind::kOutOfMemory:
        ++recording.failures;
        ++recording.retries;  // the cache was emptied in vain
        recording.device_bytes = reserved + event.address;
        has_released = false;
        break;
      default:
        has_released = false;
    }
    recording.peak_reserved_bytes =
        std::max(recording.peak_reserved_bytes, reserved);
  }
}

}  // namespace

Recording MakeRecording(const DeviceSnapshot& device,
                        const AllocatorConfig& config, std::string_view name) {
  Recording recording;
  Undo undo(device, config);
  for (size_t k = device.events.size(); k-- > 0;) {
    RecordedEvent event = {.event = device.events[k],
                           .index = static_cast<int64_t>(k)};
    if (undo.Take(event)) {
      recording.events.push_back(event);
      recording.allocations += event.event.kind == Kind::kAllocate ? 1 : 0;
    } else {
      ++recording.contradictions;
    }
  }
  if (recording.allocations == 0) {
    throw InputError(
        fmt::format("{}: expected a recording with allocations "
                    "(torch.cuda.memory._record_memory_history), found none",
                    OneLine(name, 400)));
  }
  std::ranges::reverse(recording.events);
  recording.start = LayoutOf(undo.state(), config, name);
  recording.start_reserved_bytes = MappedBytesOf(recording.start);
  OrderBlocks(undo.blocks(), recording);
  CountRecorded(recording);
  return recording;
}

}  // namespace acplan::graph
