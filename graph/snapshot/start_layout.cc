#include "graph/snapshot/start_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <iterator>
#include <map>

#include "graph/allocator/device_memory.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"

// A block that was freed in the recording and is older than it has a request of
// known bytes, but not a known size: that follows from the rules by which blocks
// are split.

namespace acplan::graph {
namespace {

constexpr int64_t kLeastSplit = 512;

// Returns the size of a live block if the next one begins at `limit`.
int64_t SizeOf(const AllocatorConfig& config, const SegmentRange& range,
               const LiveBlock& block, int64_t address, int64_t limit) {
  if (block.bytes) return std::min(*block.bytes, limit - address);
  const int64_t rounded = RoundedBytesOf(config, block);
  const int64_t rest = limit - address - rounded;
  const bool splits_all = range.is_small || range.is_expandable;
  const bool is_unsplit = rest < kLeastSplit ||
                          (!splits_all && (rest <= LargestUnsplit() ||
                                           rounded >= config.max_split_bytes));
  return is_unsplit ? limit - address : rounded;
}

void AddFree(std::vector<BlockLayout>& blocks, int64_t bytes) {
  if (bytes <= 0) return;
  const bool merges =
      !blocks.empty() && blocks.back().block < 0 && blocks.back().is_mapped;
  if (merges) {
    blocks.back().bytes += bytes;
  } else {
    blocks.push_back({.bytes = bytes});
  }
}

// Adds the blocks and free pieces of a range.
void AddPieces(const MemoryState& state, const AllocatorConfig& config,
               const std::pair<const int64_t, SegmentRange>& entry,
               std::vector<BlockLayout>& blocks) {
  const auto& [begin, range] = entry;
  const int64_t end = begin + range.bytes;
  int64_t at = begin;
  for (auto live = state.live.lower_bound(begin);
       live != state.live.end() && live->first < end; ++live) {
    const auto& [address, block] = *live;
    AddFree(blocks, address - at);
    const auto next = std::next(live);
    const int64_t limit =
        next == state.live.end() ? end : std::min(next->first, end);
    const int64_t bytes = SizeOf(config, range, block, address, limit);
    blocks.push_back({.bytes = bytes,
                      .asked_bytes = block.asked_bytes,
                      .block = block.block});
    at = address + bytes;
  }
  AddFree(blocks, end - at);
}

// Merges mapped ranges that touch: a block may lie across them.
void MergeRanges(std::map<int64_t, SegmentRange>& ranges) {
  for (auto range = ranges.begin(); range != ranges.end(); ++range) {
    auto next = std::next(range);
    while (range->second.is_expandable && next != ranges.end() &&
           next->first == range->first + range->second.bytes &&
           IsSameKind(range->second, next->second)) {
      range->second.bytes += next->second.bytes;
      next = ranges.erase(next);
    }
  }
}

// Returns the lowest address that was ever mapped in the segment of a range, at a
// distance of whole pages.
int64_t BaseOf(const MemoryState& state, int64_t address,
               const SegmentRange& range, int64_t page) {
  if (!range.is_expandable) return address;
  for (const auto& [other_address, other] : state.past_ranges) {
    if (other_address > address) break;
    if (IsSameKind(range, other) && (address - other_address) % page == 0) {
      return other_address;
    }
  }
  return address;
}

int64_t EndOfLayout(const SegmentLayout& layout) {
  int64_t end = layout.address;
  for (const BlockLayout& block : layout.blocks) end += block.bytes;
  return end;
}

}  // namespace

std::vector<SegmentLayout> LayoutOf(MemoryState state,
                                    const AllocatorConfig& config,
                                    std::string_view name) {
  const auto fail = [&](std::string_view message) {
    throw InputError(fmt::format("{}: {}", OneLine(name, 400), message));
  };
  MergeRanges(state.ranges);
  std::vector<SegmentLayout> layouts;
  std::map<int64_t, size_t> place_of_base;
  int64_t bytes = 0;
  for (const auto& entry : state.ranges) {
    const auto& [address, range] = entry;
    bytes += range.bytes;
    if (bytes > kLargestDevice) fail("expected at most 16 TiB in segments");
    const int64_t page =
        range.is_small ? kDevicePage : config.large_segment_bytes;
    const int64_t base = BaseOf(state, address, range, page);
    if (range.is_expandable && range.bytes % page != 0) {
      fail("expected expandable segments of whole pages");
    }
    const auto [place, is_new] =
        place_of_base.try_emplace(base, layouts.size());
    if (is_new) {
      layouts.push_back({.address = base,
                         .stream = range.stream,
                         .private_pool = range.private_pool,
                         .is_small = range.is_small,
                         .is_expandable = range.is_expandable});
    }
    SegmentLayout& layout = layouts[place->second];
    const int64_t gap = address - EndOfLayout(layout);
    if (gap > 0) layout.blocks.push_back({.bytes = gap, .is_mapped = false});
    AddPieces(state, config, entry, layout.blocks);
  }
  return layouts;
}

}  // namespace acplan::graph
