#include "graph/snapshot/recorded_run.h"

#include <algorithm>
#include <cstddef>
#include <map>

#include "graph/allocator/blocks.h"
#include "graph/allocator/caching_allocator.h"
#include "graph/allocator/device_memory.h"

namespace acplan::graph {
namespace {

using Kind = SnapshotEvent::Kind;

// No private pool: those are numbered from 1 on.
constexpr int64_t kDefaultPool = 0;

// A block as a snapshot has it.
struct PlacedBlock {
  int64_t address = 0;
  int64_t bytes = 0;
  bool is_free = false;

  bool operator==(const PlacedBlock&) const = default;
};

// Returns the blocks of each segment or mapped range, by its address.
std::map<int64_t, std::vector<PlacedBlock>> SegmentsWithBlocks(
    const AllocatorState& state) {
  std::map<int64_t, std::vector<PlacedBlock>> segments;
  for (const BlockId id : ExistingBlocks(state)) {
    const Block& first = state.At(id);
    const bool begins =
        first.previous == kNoBlock || !state.At(first.previous).is_mapped;
    if (!first.is_mapped || !begins) continue;
    std::vector<PlacedBlock>& blocks = segments[first.address];
    for (const Block* block = &first; block->is_mapped;
         block = &state.At(block->next)) {
      blocks.push_back({.address = block->address,
                        .bytes = block->size,
                        .is_free = block->IsFree()});
      if (block->next == kNoBlock) break;
    }
  }
  return segments;
}

void CompareSegments(const DeviceSnapshot& device, const AllocatorState& state,
                     RecordingComparison& comparison) {
  const auto ours = SegmentsWithBlocks(state);
  comparison.segments = std::ssize(device.segments);
  for (const SnapshotSegment& segment : device.segments) {
    std::vector<PlacedBlock> blocks;
    for (const SnapshotBlock& block : segment.blocks) {
      blocks.push_back({.address = block.address,
                        .bytes = block.bytes,
                        .is_free = block.state == SnapshotBlock::State::kFree});
    }
    const auto same = ours.find(segment.address);
    const bool is_equal = same != ours.end() && same->second == blocks;
    comparison.equal_segments += is_equal ? 1 : 0;
  }
}

// Lets a private pool serve, or the default ones.
class PoolSwitch {
 public:
  explicit PoolSwitch(CachingAllocator& allocator) : allocator_(allocator) {}

  void Use(const std::optional<int64_t>& pool) {
    const int64_t next = pool.value_or(kDefaultPool);
    if (next == now_) return;
    if (now_ != kDefaultPool) allocator_.EndPool(now_);
    if (next != kDefaultPool) allocator_.BeginPool(next, false);
    now_ = next;
  }

 private:
  CachingAllocator& allocator_;
  int64_t now_ = kDefaultPool;
};

// Returns whether a recorded release is the program's own, by the event that
// follows the releases: a request that had no memory maps or allocates some, or
// fails.
std::vector<bool> CacheCalls(const Recording& recording) {
  std::vector<bool> is_call(recording.events.size(), false);
  bool is_for_request = false;
  for (size_t k = recording.events.size(); k-- > 0;) {
    const SnapshotEvent& event = recording.events[k].event;
    switch (event.kind) {
      case Kind::kSegmentFree:
      case Kind::kSegmentUnmap:
        is_call[k] = event.is_cache_call || !is_for_request;
        break;
      case Kind::kSegmentAllocate:
      case Kind::kSegmentMap:
      case Kind::kOutOfMemory:
        is_for_request = true;
        break;
      default:
        is_for_request = false;
    }
  }
  return is_call;
}

class RunWriter {
 public:
  explicit RunWriter(RecordedRun& run) : run_(run) {}

  void Add(AllocatorEvent event, int64_t index, int32_t line,
           bool is_failure = false) {
    run_.events.events.push_back(event);
    run_.events.lines.push_back(index);
    run_.indices.push_back(index);
    run_.lines.push_back(line);
    run_.is_failure.push_back(is_failure);
  }

  void UsePool(const std::optional<int64_t>& pool, int64_t index) {
    const int64_t next = pool.value_or(kDefaultPool);
    if (next == now_) return;
    if (now_ != kDefaultPool) {
      Add({.kind = AllocatorEvent::Kind::kEndPool, .pool = now_}, index, -1);
    }
    if (next != kDefaultPool) {
      Add({.kind = AllocatorEvent::Kind::kBeginPool, .pool = next}, index, -1);
    }
    now_ = next;
  }

  int32_t NewBlock(int64_t address, int32_t line) {
    run_.events.block_ids.push_back(address);
    run_.block_lines.push_back(line);
    return static_cast<int32_t>(run_.events.block_ids.size() - 1);
  }

 private:
  RecordedRun& run_;
  int64_t now_ = kDefaultPool;
};

// Allocates the blocks of the beginning anew.
void AllocateStart(const Recording& recording, RunWriter& writer) {
  for (const SegmentLayout& segment : recording.start) {
    writer.UsePool(segment.private_pool, -1);
    for (const BlockLayout& block : segment.blocks) {
      if (block.block < 0) continue;
      const RecordedBlock& recorded =
          recording.blocks[static_cast<size_t>(block.block)];
      writer.Add({.block = block.block,
                  .bytes = std::max<int64_t>(recorded.asked_bytes, 1),
                  .stream = segment.stream},
                 -1, recorded.line);
    }
  }
}

bool KeepsStart(const AllocatorConfig& recorded,
                const AllocatorConfig& config) {
  return recorded.expandable_segments == config.expandable_segments &&
         (!config.expandable_segments ||
          recorded.large_segment_bytes == config.large_segment_bytes);
}

}  // namespace

RecordingComparison CompareWithRecording(const DeviceSnapshot& device,
                                         const Recording& recording,
                                         const AllocatorConfig& config) {
  CachingAllocator allocator(config, kLargestDevice);
  std::vector<BlockId> blocks(recording.blocks.size(), kNoBlock);
  for (const SegmentLayout& segment : recording.start) {
    const std::vector<BlockId> ids = allocator.AddSegment(segment);
    for (size_t k = 0; k < ids.size(); ++k) {
      if (ids[k] == kNoBlock) continue;
      blocks[static_cast<size_t>(segment.blocks[k].block)] = ids[k];
    }
  }
  RecordingComparison comparison;
  PoolSwitch pool(allocator);
  for (const RecordedEvent& recorded : recording.events) {
    const SnapshotEvent& event = recorded.event;
    switch (event.kind) {
      case Kind::kAllocate: {
        pool.Use(recorded.private_pool);
        const BlockId id = allocator.Allocate(event.bytes, event.stream);
        blocks[static_cast<size_t>(recorded.block)] = id;
        ++comparison.allocations;
        if (id != kNoBlock &&
            allocator.state().At(id).address == event.address) {
          ++comparison.equal_allocations;
        } else if (!comparison.first_difference) {
          comparison.first_difference = recorded.index;
        }
        break;
      }
      case Kind::kFreeCompleted: {
        BlockId& id = blocks[static_cast<size_t>(recorded.block)];
        if (id != kNoBlock) allocator.Free(id);
        id = kNoBlock;
        break;
      }
      case Kind::kSegmentAllocate:
      case Kind::kSegmentMap:
        allocator.PlaceNextSegment(event.address);
        break;
      case Kind::kSegmentFree:
      case Kind::kSegmentUnmap:
        allocator.GiveBack(event.address);
        break;
      case Kind::kFreeRequested:
      case Kind::kOutOfMemory:
        break;
    }
  }
  comparison.peak_allocated_bytes = allocator.counts().peak_allocated_bytes;
  comparison.peak_reserved_bytes = allocator.counts().peak_reserved_bytes;
  CompareSegments(device, allocator.state(), comparison);
  return comparison;
}

RecordedRun MakeRecordedRun(const Recording& recording,
                            const AllocatorConfig& recorded,
                            const AllocatorConfig& config) {
  RecordedRun run;
  run.keeps_start = KeepsStart(recorded, config);
  RunWriter writer(run);
  for (const RecordedBlock& block : recording.blocks) {
    writer.NewBlock(block.address, block.line);
  }
  if (run.keeps_start) {
    run.events.start = recording.start;
  } else {
    AllocateStart(recording, writer);
  }
  const std::vector<bool> is_call = CacheCalls(recording);
  bool is_emptied = false;
  for (size_t k = 0; k < recording.events.size(); ++k) {
    const auto& [event, index, block, private_pool] = recording.events[k];
    if (event.kind != Kind::kSegmentFree && event.kind != Kind::kSegmentUnmap) {
      is_emptied = false;
    }
    switch (event.kind) {
      case Kind::kAllocate:
        writer.UsePool(private_pool, index);
        writer.Add(
            {.block = block, .bytes = event.bytes, .stream = event.stream},
            index, event.line);
        break;
      case Kind::kFreeCompleted:
        writer.Add({.kind = AllocatorEvent::Kind::kFree, .block = block}, index,
                   event.line);
        break;
      case Kind::kSegmentFree:
      case Kind::kSegmentUnmap:
        if (is_call[k] && !is_emptied) {
          writer.Add({.kind = AllocatorEvent::Kind::kEmptyCache}, index,
                     event.line);
          is_emptied = true;
        }
        break;
      case Kind::kOutOfMemory: {
        if (event.bytes == 0) break;
        const int32_t failed = writer.NewBlock(0, event.line);
        writer.Add(
            {.block = failed, .bytes = event.bytes, .stream = event.stream},
            index, event.line, true);
        writer.Add({.kind = AllocatorEvent::Kind::kFree, .block = failed},
                   index, event.line);
        break;
      }
      default:
        break;
    }
  }
  return run;
}

}  // namespace acplan::graph
