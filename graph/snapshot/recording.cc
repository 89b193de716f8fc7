#include "graph/snapshot/recording.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <limits>
#include <map>
#include <string>

#include "graph/allocator/blocks.h"
#include "graph/allocator/device_memory.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

// The snapshot has the memory at the end, and each event can be undone: the
// memory before a block was allocated is that without the block, before a
// segment was freed that with it. So the events are undone from the last one
// back, which leaves the memory at the beginning of the recording, and on the
// way each free finds the block that it freed.
//
// A block that was freed in the recording and is older than it has a request of
// known bytes, but not a known size: that follows from the rules by which blocks
// are split. In the large pool of native segments no block has less than 1 MiB,
// so a gap of that size before the next block belongs to the block before it.

namespace acplan::graph {
namespace {

using Kind = SnapshotEvent::Kind;

constexpr int64_t kSmallestBlock = 512;
constexpr int64_t kLargestUnsplit = int64_t{1} << 20;
constexpr int64_t kSmallSegment = int64_t{2} << 20;

// A block that lives at some moment.
struct LiveBlock {
  int32_t block = -1;
  std::optional<int64_t> bytes = {};  // known if it lives in the snapshot
};

// A segment or a mapped range at some moment.
struct Range {
  int64_t bytes = 0;
  int64_t stream = 0;
  bool is_small = false;
  bool is_expandable = false;
  std::optional<int64_t> private_pool = {};
};

// Returns the entry that `address` lies in, or the end.
template <typename Map>
auto Containing(Map& ranges, int64_t address) {
  auto range = ranges.upper_bound(address);
  if (range == ranges.begin()) return ranges.end();
  --range;
  return address < range->first + range->second.bytes ? range : ranges.end();
}

bool IsSameKind(const Range& a, const Range& b) {
  return a.stream == b.stream && a.is_small == b.is_small &&
         a.is_expandable == b.is_expandable && a.private_pool == b.private_pool;
}

class Undo {
 public:
  Undo(const DeviceSnapshot& device, const AllocatorConfig& config,
       std::string_view name)
      : device_(device), config_(config), name_(name) {
    for (const SnapshotSegment& segment : device.segments) {
      ranges_[segment.address] = {.bytes = segment.bytes,
                                  .stream = segment.stream,
                                  .is_small = segment.is_small,
                                  .is_expandable = segment.is_expandable,
                                  .private_pool = segment.private_pool};
      for (const SnapshotBlock& block : segment.blocks) {
        if (block.state == SnapshotBlock::State::kFree) continue;
        live_[block.address] = {
            .block = NewBlock(block.address, block.asked_bytes, block.line),
            .bytes = block.bytes};
      }
    }
    all_ranges_ = ranges_;
  }

  Recording Run() {
    for (size_t k = device_.events.size(); k-- > 0;) {
      RecordedEvent event = {.event = device_.events[k],
                             .index = static_cast<int64_t>(k)};
      if (UndoEvent(event)) {
        recording_.events.push_back(event);
      } else {
        ++recording_.contradictions;
      }
    }
    std::ranges::reverse(recording_.events);
    SetStart();
    OrderBlocks();
    return std::move(recording_);
  }

 private:
  int32_t NewBlock(int64_t address, int64_t asked_bytes, int32_t line) {
    if (recording_.blocks.size() >= std::numeric_limits<int32_t>::max()) {
      throw InputError(fmt::format("{}: too many blocks", OneLine(name_, 400)));
    }
    recording_.blocks.push_back(
        {.address = address, .asked_bytes = asked_bytes, .line = line});
    return static_cast<int32_t>(recording_.blocks.size() - 1);
  }

  // Returns whether the event can be undone.
  bool UndoEvent(RecordedEvent& recorded) {
    const SnapshotEvent& event = recorded.event;
    switch (event.kind) {
      case Kind::kAllocate:
        return UndoAllocation(recorded);
      case Kind::kFreeCompleted: {
        if (!HoldsRoom(event)) return false;
        const auto [live, is_new] = live_.try_emplace(event.address);
        if (!is_new) return false;
        // Its line is that of its allocation, if that is in the recording.
        live->second.block = NewBlock(event.address, event.bytes, -1);
        recorded.block = live->second.block;
        return true;
      }
      case Kind::kFreeRequested: {
        const auto live = live_.find(event.address);
        if (live == live_.end()) return false;
        recorded.block = live->second.block;
        return true;
      }
      case Kind::kSegmentAllocate:
        return UndoSegment(event);
      case Kind::kSegmentFree:
        return AddRange(event, false);
      case Kind::kSegmentMap:
        return UndoMap(event);
      case Kind::kSegmentUnmap:
        return AddRange(event, true);
      case Kind::kOutOfMemory:
        return true;
    }
    return false;
  }

  // Returns whether a block of the event can have lived before it.
  bool HoldsRoom(const SnapshotEvent& event) const {
    const auto range = Containing(ranges_, event.address);
    if (range == ranges_.end() || event.bytes == 0) return false;
    const int64_t end =
        event.address + std::max(event.bytes, kSmallestBlock);
    const auto next = live_.upper_bound(event.address);
    if (next != live_.end() && next->first < end) return false;
    if (next != live_.begin()) {
      const auto& [address, before] = *std::prev(next);
      const RecordedBlock& block =
          recording_.blocks[static_cast<size_t>(before.block)];
      if (address + std::max(block.asked_bytes, kSmallestBlock) >
          event.address) {
        return false;
      }
    }
    return end <= EndOf(range);
  }

  // Returns the end of a range and of those of its kind right behind it.
  int64_t EndOf(std::map<int64_t, Range>::const_iterator range) const {
    int64_t end = range->first + range->second.bytes;
    auto next = std::next(range);
    while (next != ranges_.end() && next->first == end &&
           range->second.is_expandable &&
           IsSameKind(next->second, range->second)) {
      end += next->second.bytes;
      ++next;
    }
    return end;
  }

  bool UndoAllocation(RecordedEvent& recorded) {
    const auto live = live_.find(recorded.event.address);
    const auto range = Containing(ranges_, recorded.event.address);
    if (live == live_.end() || range == ranges_.end()) return false;
    recorded.block = live->second.block;
    recorded.is_small = range->second.is_small;
    recorded.private_pool = range->second.private_pool;
    RecordedBlock& block =
        recording_.blocks[static_cast<size_t>(recorded.block)];
    block.line = recorded.event.line;
    block.asked_bytes = recorded.event.bytes;
    LearnSize(live, range);
    live_.erase(live);
    ++recording_.allocations;
    return true;
  }

  // Learns the size of the live block before `live`, which was allocated behind
  // it: where a block begins within 1 MiB of a request's end, the bytes between
  // are a part of the block before.
  void LearnSize(std::map<int64_t, LiveBlock>::iterator live,
                 std::map<int64_t, Range>::const_iterator range) {
    if (live == live_.begin() || range->second.is_small ||
        range->second.is_expandable) {
      return;
    }
    auto& [address, before] = *std::prev(live);
    if (before.bytes || address < range->first) return;
    const int64_t rest = live->first - address - RoundedSizeOf(before);
    if (rest > 0 && rest <= kLargestUnsplit) {
      before.bytes = live->first - address;
    }
  }

  int64_t RoundedSizeOf(const LiveBlock& live) const {
    const int64_t asked =
        recording_.blocks[static_cast<size_t>(live.block)].asked_bytes;
    return RoundedBytes(config_, std::max<int64_t>(asked, 1));
  }

  bool HasLiveBlock(int64_t begin, int64_t end) const {
    const auto live = live_.lower_bound(begin);
    return live != live_.end() && live->first < end;
  }

  bool UndoSegment(const SnapshotEvent& event) {
    const auto range = ranges_.find(event.address);
    if (range == ranges_.end() || range->second.bytes != event.bytes ||
        HasLiveBlock(event.address, event.address + event.bytes)) {
      return false;
    }
    ranges_.erase(range);
    return true;
  }

  bool AddRange(const SnapshotEvent& event, bool is_expandable) {
    const int64_t end = event.address + event.bytes;
    const auto next = ranges_.lower_bound(event.address);
    if (event.bytes == 0 || event.bytes > kLargestDevice ||
        Containing(ranges_, event.address) != ranges_.end() ||
        (next != ranges_.end() && next->first < end)) {
      return false;
    }
    Range range = {.bytes = event.bytes,
                   .stream = event.stream,
                   .is_small = event.bytes == kSmallSegment,
                   .is_expandable = is_expandable};
    if (is_expandable) {
      const Range* near = NearestExpandable(event);
      range.is_small = near == nullptr ? event.bytes % config_.large_segment_bytes != 0
                                       : near->is_small;
      if (near != nullptr) range.private_pool = near->private_pool;
    }
    ranges_[event.address] = range;
    all_ranges_[event.address] = range;
    return true;
  }

  // Returns the expandable range of this stream whose address is nearest: each
  // segment has more addresses than the device has bytes.
  const Range* NearestExpandable(const SnapshotEvent& event) const {
    const Range* nearest = nullptr;
    int64_t distance = std::numeric_limits<int64_t>::max();
    for (const auto& [address, range] : all_ranges_) {
      if (!range.is_expandable || range.stream != event.stream) continue;
      const int64_t gap =
          std::max(address, event.address) - std::min(address, event.address);
      if (gap < distance) {
        distance = gap;
        nearest = &range;
      }
    }
    return nearest;
  }

  bool UndoMap(const SnapshotEvent& event) {
    const int64_t end = event.address + event.bytes;
    const auto range = Containing(ranges_, event.address);
    if (range == ranges_.end() || event.bytes == 0 ||
        !range->second.is_expandable || EndOf(range) < end ||
        HasLiveBlock(event.address, end)) {
      return false;
    }
    // Ranges right behind each other are one.
    int64_t begin = range->first;
    const Range whole = range->second;
    auto next = range;
    while (next != ranges_.end() && next->first < end) {
      const int64_t next_end = next->first + next->second.bytes;
      next = ranges_.erase(next);
      if (next_end > end) {
        Range rest = whole;
        rest.bytes = next_end - end;
        ranges_[end] = rest;
        break;
      }
    }
    if (begin < event.address) {
      Range rest = whole;
      rest.bytes = event.address - begin;
      ranges_[begin] = rest;
    }
    return true;
  }

  [[noreturn]] void Fail(std::string_view message) const {
    throw InputError(fmt::format("{}: {}", OneLine(name_, 400), message));
  }

  // Returns the size of a live block of which only the request is known, if the
  // next one begins at `limit`.
  int64_t SizeOf(const LiveBlock& live, int64_t address, int64_t limit,
                 const Range& range) const {
    if (live.bytes) return std::min(*live.bytes, limit - address);
    const int64_t rounded = RoundedSizeOf(live);
    const int64_t rest = limit - address - rounded;
    const bool splits_all = range.is_small || range.is_expandable;
    const bool is_unsplit =
        rest < kSmallestBlock ||
        (!splits_all &&
         (rest <= kLargestUnsplit || rounded >= config_.max_split_bytes));
    return is_unsplit ? limit - address : rounded;
  }

  // Adds the blocks and free pieces of a range to a layout.
  void AddPieces(int64_t begin, const Range& range,
                 SegmentLayout& layout) const {
    const int64_t end = begin + range.bytes;
    int64_t at = begin;
    const auto add_free = [&](int64_t to) {
      if (to <= at) return;
      auto& blocks = layout.blocks;
      const bool merges = !blocks.empty() && blocks.back().block < 0 &&
                          blocks.back().is_mapped;
      if (merges) {
        blocks.back().bytes += to - at;
      } else {
        blocks.push_back({.bytes = to - at});
      }
      at = to;
    };
    for (auto live = live_.lower_bound(begin);
         live != live_.end() && live->first < end; ++live) {
      add_free(live->first);
      const auto next = std::next(live);
      const int64_t limit = next != live_.end() && next->first < end
                                ? next->first
                                : end;
      const int64_t bytes = SizeOf(live->second, live->first, limit, range);
      layout.blocks.push_back(
          {.bytes = bytes,
           .asked_bytes =
               recording_.blocks[static_cast<size_t>(live->second.block)]
                   .asked_bytes,
           .block = live->second.block});
      at += bytes;
    }
    add_free(end);
  }

  // Merges mapped ranges that touch: a block may lie across them.
  void MergeRanges() {
    for (auto range = ranges_.begin(); range != ranges_.end(); ++range) {
      auto next = std::next(range);
      while (range->second.is_expandable && next != ranges_.end() &&
             next->first == range->first + range->second.bytes &&
             IsSameKind(range->second, next->second)) {
        range->second.bytes += next->second.bytes;
        next = ranges_.erase(next);
      }
    }
  }

  // Returns where the segment of an expandable range begins: at the lowest range
  // of its kind that was ever mapped.
  int64_t BaseOf(const Range& range) const {
    for (const auto& [address, other] : all_ranges_) {
      if (IsSameKind(range, other)) return address;
    }
    return 0;
  }

  void SetStart() {
    MergeRanges();
    std::map<int64_t, size_t> segment_of_base;
    int64_t bytes = 0;
    for (const auto& [address, range] : ranges_) {
      bytes += range.bytes;
      SegmentLayout layout = {.address = address,
                              .stream = range.stream,
                              .private_pool = range.private_pool,
                              .is_small = range.is_small,
                              .is_expandable = range.is_expandable};
      if (!range.is_expandable) {
        AddPieces(address, range, layout);
        recording_.start.push_back(layout);
        continue;
      }
      const int64_t base = BaseOf(range);
      const int64_t page =
          range.is_small ? kDevicePage : config_.large_segment_bytes;
      if ((address - base) % page != 0 || range.bytes % page != 0) {
        Fail("expected expandable segments of whole pages");
      }
      const auto [place, is_new] =
          segment_of_base.try_emplace(base, recording_.start.size());
      if (is_new) {
        layout.address = base;
        recording_.start.push_back(layout);
      }
      SegmentLayout& segment = recording_.start[place->second];
      int64_t end = segment.address;
      for (const BlockLayout& block : segment.blocks) end += block.bytes;
      if (address > end) {
        segment.blocks.push_back({.bytes = address - end, .is_mapped = false});
      }
      AddPieces(address, range, segment);
    }
    if (bytes > kLargestDevice) Fail("expected at most 16 TiB in segments");
    recording_.start_reserved_bytes = bytes;
  }

  // Puts the blocks of the beginning first, in the order of their segments, and
  // the others behind them in the order of their allocation.
  void OrderBlocks() {
    std::vector<int32_t> place(recording_.blocks.size(), -1);
    std::vector<RecordedBlock> blocks;
    const auto put = [&](int32_t& block) {
      int32_t& now = place[static_cast<size_t>(block)];
      if (now < 0) {
        now = static_cast<int32_t>(blocks.size());
        blocks.push_back(recording_.blocks[static_cast<size_t>(block)]);
      }
      block = now;
    };
    for (SegmentLayout& segment : recording_.start) {
      for (BlockLayout& block : segment.blocks) {
        if (block.block >= 0) put(block.block);
      }
    }
    recording_.start_blocks = static_cast<int64_t>(blocks.size());
    for (RecordedEvent& event : recording_.events) {
      if (event.block >= 0) put(event.block);
    }
    recording_.blocks = std::move(blocks);
  }

  const DeviceSnapshot& device_;
  const AllocatorConfig& config_;
  std::string_view name_;
  std::map<int64_t, Range> ranges_;      // by address
  std::map<int64_t, Range> all_ranges_;  // that were ever there
  std::map<int64_t, LiveBlock> live_;    // by address
  Recording recording_;
};

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
  Recording recording = Undo(device, config, name).Run();
  if (recording.allocations == 0) {
    throw InputError(fmt::format(
        "{}: expected a recording with allocations "
        "(torch.cuda.memory._record_memory_history), found none",
        OneLine(name, 400)));
  }
  CountRecorded(recording);
  return recording;
}

}  // namespace acplan::graph
