#include "cli/planning/allocator_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "cli/input/device_offer.h"
#include "cli/terminal/text.h"
#include "graph/base/byte_size.h"
#include "graph/base/message_text.h"

namespace acplan::cli {
namespace {

using graph::SegmentUse;

// The most lines beside holes that are printed.
constexpr size_t kMostHoleLines = 5;

// The segments of one stream and pool together.
struct PoolRow {
  int64_t stream = 0;
  std::optional<int64_t> private_pool;
  bool is_small = false;
  int64_t segments = 0;
  int64_t bytes = 0;
  int64_t allocated_bytes = 0;
  int64_t largest_free_bytes = 0;
};

std::vector<PoolRow> PoolRows(const std::vector<SegmentUse>& segments) {
  std::vector<PoolRow> rows;
  for (const SegmentUse& use : segments) {
    auto row = std::ranges::find_if(rows, [&](const PoolRow& other) {
      return other.stream == use.stream && other.is_small == use.is_small &&
             other.private_pool == use.private_pool;
    });
    if (row == rows.end()) {
      rows.push_back({.stream = use.stream,
                      .private_pool = use.private_pool,
                      .is_small = use.is_small});
      row = std::prev(rows.end());
    }
    ++row->segments;
    row->bytes += use.bytes;
    row->allocated_bytes += use.allocated_bytes;
    row->largest_free_bytes =
        std::max(row->largest_free_bytes, use.largest_free_bytes);
  }
  return rows;
}

std::string PoolText(const PoolRow& row) {
  return fmt::format("{}{}", row.is_small ? "small" : "large",
                     row.private_pool
                         ? fmt::format(", private pool {}", *row.private_pool)
                         : "");
}

}  // namespace

std::string TorchVersionText(const graph::AllocatorConfig& config) {
  return fmt::format("{}.{}", config.version.major, config.version.minor);
}

std::string_view EventKindText(graph::AllocatorEvent::Kind kind) {
  using enum graph::AllocatorEvent::Kind;
  switch (kind) {
    case kAllocate:
      return "allocate";
    case kFree:
      return "free";
    case kRecordStream:
      return "record_stream";
    case kEmptyCache:
      return "empty_cache";
    case kBeginCapture:
      return "begin_capture";
    case kBeginPool:
      return "begin_pool";
    case kEndPool:
      return "end_pool";
    case kReleasePool:
      return "release_pool";
  }
  return "";
}

std::string AllocatorText(const AllocatorQuestion& question) {
  return fmt::format(
      "PyTorch {}, {} segments, {}", TorchVersionText(question.config),
      question.config.expandable_segments ? "expandable" : "native",
      question.device_bytes
          ? fmt::format("a device of {}",
                        graph::FormatBytes(*question.device_bytes))
          : "a device without limit");
}

std::string SegmentsTable(const std::vector<SegmentUse>& segments,
                          const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kLeft, kRight, kRight, kRight, kRight, kRight});
  table.AddRow({"stream", "pool", "segments", "reserved", "allocated", "free",
                "largest free"});
  for (const PoolRow& row : PoolRows(segments)) {
    table.AddRow({fmt::format("{}", row.stream), PoolText(row),
                  FormatCount(row.segments), graph::FormatBytes(row.bytes),
                  graph::FormatBytes(row.allocated_bytes),
                  graph::FormatBytes(row.bytes - row.allocated_bytes),
                  graph::FormatBytes(row.largest_free_bytes)});
  }
  return table.ToString(terminal);
}

std::string PlaceFields(const graph::CachingAllocator& allocator,
                        graph::BlockId block) {
  if (block == graph::kNoBlock) return ",";
  const graph::Placement placement = allocator.PlacementOf(block);
  return fmt::format("{},{}", placement.segment, placement.offset);
}

std::string PeaksText(const AllocatorQuestion& question,
                      const graph::AllocatorCounts& counts,
                      const std::optional<graph::LeastDevice>& least) {
  std::string text = question.offer ? OfferLine(*question.offer) : "";
  text += fmt::format("peak allocated: {}\npeak reserved: {}\n",
                      FormatBytesExactly(counts.peak_allocated_bytes),
                      FormatBytesExactly(counts.peak_reserved_bytes));
  if (!question.wants_least_device) return text;
  if (!least) return text + "least device: no device is large enough\n";
  return text +
         fmt::format("least device: {}{}\n", FormatBytesExactly(least->bytes),
                     least->is_least
                         ? ""
                         : ", found by bisection: a smaller one may be enough");
}

std::string PeakTitle(bool is_failure, const std::string& place) {
  return fmt::format(
      "\n{} at {}:\n",
      is_failure ? "At the failure," : "At the peak of reserved bytes,", place);
}

std::string HolesText(int64_t bytes, const std::vector<LineHoles>& lines) {
  if (bytes == 0) return "";
  std::string text =
      fmt::format("{} of it is free but cannot be released, beside blocks of\n",
                  graph::FormatBytes(bytes));
  for (size_t k = 0; k < std::min(lines.size(), kMostHoleLines); ++k) {
    text += fmt::format("  {}: {}\n", graph::OneLine(lines[k].line, 300),
                        graph::FormatBytes(lines[k].bytes));
  }
  if (lines.size() > kMostHoleLines) {
    text += fmt::format("  and {} more\n", lines.size() - kMostHoleLines);
  }
  return text;
}

std::string ReclaimsText(const graph::Replay& replay) {
  int64_t collected = 0;
  int64_t oversize = 0;
  int64_t released = 0;
  for (const graph::Reclaim& reclaim : replay.reclaims) {
    collected += reclaim.collected_bytes;
    oversize += reclaim.oversize_bytes;
    released += reclaim.released_bytes;
  }
  if (replay.reclaims.empty()) return "";
  const int64_t retries = replay.counts.retries;
  std::string text =
      fmt::format("{} {}, which freed {} of the cache", FormatCount(retries),
                  retries == 1 ? "retry" : "retries",
                  graph::FormatManyBytes(static_cast<double>(released)));
  if (collected > 0) {
    text += fmt::format("; garbage collection freed {}",
                        graph::FormatManyBytes(static_cast<double>(collected)));
  }
  if (oversize > 0) {
    text += fmt::format("; freeing blocks above max_split_size_mb freed {}",
                        graph::FormatManyBytes(static_cast<double>(oversize)));
  }
  return text + "\n";
}

std::string FailureText(const graph::ReplayFailure& failure,
                        const std::string& place, const Terminal& terminal) {
  return fmt::format(
      "{}: {} on stream {} at {}, with {} allocated, {} reserved and {} of "
      "the device free\n",
      terminal.Bold("out of memory"), graph::FormatBytes(failure.bytes),
      failure.stream, place, graph::FormatBytes(failure.allocated_bytes),
      graph::FormatBytes(failure.reserved_bytes),
      graph::FormatBytes(failure.free_bytes));
}

}  // namespace acplan::cli
