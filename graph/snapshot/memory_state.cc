#include "graph/snapshot/memory_state.h"

#include <algorithm>
#include <iterator>

#include "graph/allocator/blocks.h"
#include "graph/allocator/device_memory.h"

namespace acplan::graph {
namespace {

constexpr int64_t kLeastBlock = 512;
constexpr int64_t kSmallNativeSegment = int64_t{2} << 20;

using Ranges = std::map<int64_t, SegmentRange>;

Ranges::const_iterator Containing(const Ranges& ranges, int64_t address) {
  auto range = ranges.upper_bound(address);
  if (range == ranges.begin()) return ranges.end();
  --range;
  return address < range->first + range->second.bytes ? range : ranges.end();
}

// Returns the end of a range and of those of its kind right behind it.
int64_t EndOf(const Ranges& ranges, Ranges::const_iterator range) {
  int64_t end = range->first + range->second.bytes;
  auto next = std::next(range);
  while (range->second.is_expandable && next != ranges.end() &&
         next->first == end && IsSameKind(next->second, range->second)) {
    end += next->second.bytes;
    ++next;
  }
  return end;
}

bool HasLiveBlock(const MemoryState& state, int64_t begin, int64_t end) {
  const auto block = state.live.lower_bound(begin);
  return block != state.live.end() && block->first < end;
}

// Returns whether an unmapped range can belong to the segment of `kind`, at `base`:
// it consists of whole pages of it.
bool FitsPages(const AllocatorConfig& config, const SegmentRange& kind,
               int64_t base, const SnapshotEvent& event) {
  const int64_t page = kind.is_small ? kDevicePage : config.large_segment_bytes;
  return event.bytes % page == 0 && (event.address - base) % page == 0;
}

// Returns a range of the expandable segment that pages were unmapped from: one
// that touches them, or else the last one before them, as segments are mapped from
// their beginning on. Private pools seldom give memory back.
SegmentRange KindOfUnmapped(const MemoryState& state,
                            const AllocatorConfig& config,
                            const SnapshotEvent& event) {
  SegmentRange kind = {
      .stream = event.stream,
      .is_small = event.bytes % config.large_segment_bytes != 0,
      .is_expandable = true};
  for (const auto& [address, range] : state.past_ranges) {
    if (!range.is_expandable || range.stream != event.stream ||
        !FitsPages(config, range, address, event)) {
      continue;
    }
    const bool touches = address + range.bytes == event.address ||
                         event.address + event.bytes == address;
    if (touches) return range;
    if (address < event.address && !range.private_pool) kind = range;
  }
  return kind;
}

}  // namespace

bool IsSameKind(const SegmentRange& a, const SegmentRange& b) {
  return a.stream == b.stream && a.is_small == b.is_small &&
         a.is_expandable == b.is_expandable && a.private_pool == b.private_pool;
}

const SegmentRange* RangeAt(const MemoryState& state, int64_t address) {
  const auto range = Containing(state.ranges, address);
  return range == state.ranges.end() ? nullptr : &range->second;
}

bool HasRoom(const MemoryState& state, const SnapshotEvent& event) {
  const auto range = Containing(state.ranges, event.address);
  if (range == state.ranges.end() || event.bytes == 0) return false;
  const int64_t end = event.address + std::max(event.bytes, kLeastBlock);
  const auto next = state.live.upper_bound(event.address);
  if (next != state.live.end() && next->first < end) return false;
  if (next != state.live.begin()) {
    const auto& [address, before] = *std::prev(next);
    if (address + std::max(before.asked_bytes, kLeastBlock) > event.address) {
      return false;
    }
  }
  return end <= EndOf(state.ranges, range);
}

int64_t RoundedBytesOf(const AllocatorConfig& config, const LiveBlock& block) {
  return RoundedBytes(config, std::max<int64_t>(block.asked_bytes, 1));
}

int64_t LargestUnsplit() { return int64_t{1} << 20; }

void LearnSize(MemoryState& state, const AllocatorConfig& config,
               int64_t address) {
  const auto range = Containing(state.ranges, address);
  const auto block = state.live.lower_bound(address);
  if (range == state.ranges.end() || range->second.is_small ||
      range->second.is_expandable || block == state.live.begin()) {
    return;
  }
  auto& [begin, before] = *std::prev(block);
  if (before.bytes || begin < range->first) return;
  const int64_t rest = address - begin - RoundedBytesOf(config, before);
  if (rest > 0 && rest <= LargestUnsplit()) before.bytes = address - begin;
}

bool UndoSegmentAllocation(MemoryState& state, const SnapshotEvent& event) {
  const auto range = state.ranges.find(event.address);
  if (range == state.ranges.end() || range->second.bytes != event.bytes ||
      HasLiveBlock(state, event.address, event.address + event.bytes)) {
    return false;
  }
  state.ranges.erase(range);
  return true;
}

bool UndoRelease(MemoryState& state, const AllocatorConfig& config,
                 const SnapshotEvent& event) {
  const int64_t end = event.address + event.bytes;
  const auto next = state.ranges.lower_bound(event.address);
  if (event.bytes == 0 || event.bytes > kLargestDevice ||
      RangeAt(state, event.address) != nullptr ||
      (next != state.ranges.end() && next->first < end)) {
    return false;
  }
  SegmentRange range = {.stream = event.stream,
                        .is_small = event.bytes == kSmallNativeSegment};
  if (event.kind == SnapshotEvent::Kind::kSegmentUnmap) {
    range = KindOfUnmapped(state, config, event);
    if (!FitsPages(config, range, event.address, event)) return false;
  }
  range.bytes = event.bytes;
  state.ranges[event.address] = range;
  state.past_ranges[event.address] = range;
  return true;
}

bool UndoMap(MemoryState& state, const SnapshotEvent& event) {
  const int64_t end = event.address + event.bytes;
  const auto range = Containing(state.ranges, event.address);
  if (range == state.ranges.end() || event.bytes == 0 ||
      !range->second.is_expandable || EndOf(state.ranges, range) < end ||
      HasLiveBlock(state, event.address, end)) {
    return false;
  }
  // The pages on both sides of it stay mapped.
  const int64_t begin = range->first;
  const SegmentRange whole = range->second;
  auto next = range;
  while (next != state.ranges.end() && next->first < end) {
    const int64_t next_end = next->first + next->second.bytes;
    next = state.ranges.erase(next);
    if (next_end > end) {
      SegmentRange rest = whole;
      rest.bytes = next_end - end;
      state.ranges[end] = rest;
      break;
    }
  }
  if (begin < event.address) {
    SegmentRange rest = whole;
    rest.bytes = event.address - begin;
    state.ranges[begin] = rest;
  }
  return true;
}

}  // namespace acplan::graph
