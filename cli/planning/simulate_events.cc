#include "cli/planning/simulate_events.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/input/exit_codes.h"
#include "cli/terminal/text.h"
#include "graph/allocator/allocator_config.h"
#include "graph/allocator/allocator_events.h"
#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/device_memory.h"
#include "graph/allocator/least_device.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"

namespace acplan::cli {
namespace {

using graph::AllocatorConfig;
using graph::AllocatorEvent;
using graph::AllocatorEvents;
using graph::Replay;
using graph::SegmentUse;
using nlohmann::ordered_json;

struct EventAnswer {
  AllocatorConfig config;
  AllocatorEvents events;
  std::optional<int64_t> device_bytes;
  Replay replay;
  std::vector<SegmentUse> segments;  // at the peak
  std::optional<graph::LeastDevice> least;
  bool has_least = false;

  int64_t device() const {
    return device_bytes.value_or(graph::kLargestDevice);
  }
};

// The number of an event among all, from 0 on, and its line in the file.
ordered_json EventJson(const EventAnswer& answer, int64_t event) {
  return {{"event", event},
          {"line", answer.events.lines[static_cast<size_t>(event)]}};
}

ordered_json FailureJson(const EventAnswer& answer) {
  if (!answer.replay.failure) return nullptr;
  const graph::ReplayFailure& failure = *answer.replay.failure;
  ordered_json json = EventJson(answer, failure.event);
  const auto block = static_cast<size_t>(
      answer.events.events[static_cast<size_t>(failure.event)].block);
  json["id"] = answer.events.block_ids[block];
  json["bytes"] = failure.bytes;
  json["stream"] = failure.stream;
  json["allocated_bytes"] = failure.allocated_bytes;
  json["reserved_bytes"] = failure.reserved_bytes;
  json["free_bytes"] = failure.free_bytes;
  return json;
}

ordered_json SegmentsJson(const EventAnswer& answer) {
  ordered_json segments = ordered_json::array();
  for (const SegmentUse& use : answer.segments) {
    segments.push_back(
        {{"segment", use.number},
         {"offset", use.offset},
         {"stream", use.stream},
         {"pool", use.is_small ? "small" : "large"},
         {"private_pool",
          use.private_pool ? ordered_json(*use.private_pool) : nullptr},
         {"expandable", use.is_expandable},
         {"bytes", use.bytes},
         {"allocated_bytes", use.allocated_bytes},
         {"largest_free_bytes", use.largest_free_bytes},
         {"blocks", use.blocks}});
  }
  return segments;
}

std::string ToJson(const EventAnswer& answer) {
  const Replay& replay = answer.replay;
  ordered_json json;
  json["torch_version"] = fmt::format("{}.{}", answer.config.version.major,
                                      answer.config.version.minor);
  json["events"] = answer.events.events.size();
  json["device_bytes"] =
      answer.device_bytes ? ordered_json(*answer.device_bytes) : nullptr;
  json["allocated_bytes"] = replay.counts.peak_allocated_bytes;
  json["reserved_bytes"] = replay.counts.peak_reserved_bytes;
  if (answer.has_least) {
    json["least_device_bytes"] =
        answer.least ? ordered_json(answer.least->bytes) : nullptr;
    if (answer.least) json["least_device_proven"] = answer.least->is_least;
  }
  json["retries"] = replay.counts.retries;
  json["reclaims"] = ordered_json::array();
  for (const graph::Reclaim& reclaim : replay.reclaims) {
    ordered_json entry = EventJson(answer, reclaim.event);
    entry["collected_bytes"] = reclaim.collected_bytes;
    entry["oversize_bytes"] = reclaim.oversize_bytes;
    entry["released_bytes"] = reclaim.released_bytes;
    entry["retry"] = reclaim.is_retry;
    json["reclaims"].push_back(std::move(entry));
  }
  json["failure"] = FailureJson(answer);
  if (replay.peak_event >= 0) {
    json["peak"] = EventJson(
        answer, replay.failure ? replay.failure->event : replay.peak_event);
    json["peak"]["segments"] = SegmentsJson(answer);
  }
  return graph::IndentedText(json);
}

std::string_view KindText(AllocatorEvent::Kind kind) {
  using enum AllocatorEvent::Kind;
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

// A row for an event: what it was and, once it is done, the block's place and
// the bytes.
std::string TimelineRow(const AllocatorEvents& events, size_t index,
                        const graph::CachingAllocator& allocator,
                        graph::BlockId block) {
  const AllocatorEvent& event = events.events[index];
  std::string id;
  if (event.block >= 0) {
    id = fmt::format("{}", events.block_ids[static_cast<size_t>(event.block)]);
  } else if (event.kind != AllocatorEvent::Kind::kEmptyCache) {
    id = fmt::format("{}", event.pool);
  }
  std::string place = ",";
  if (block != graph::kNoBlock) {
    const graph::Placement placement = allocator.PlacementOf(block);
    place = fmt::format("{},{}", placement.segment, placement.offset);
  }
  const graph::AllocatorCounts& counts = allocator.counts();
  return fmt::format("{},{},{},{},{},{},{},{},{}\n", index,
                     KindText(event.kind), id, event.bytes, event.stream, place,
                     counts.allocated_bytes, counts.reserved_bytes,
                     counts.retries);
}

EventAnswer Simulate(const EventFlags& flags, std::string& timeline) {
  EventAnswer answer;
  const graph::PyTorchVersion version =
      flags.torch_version.empty()
          ? graph::kNewestAllocator
          : graph::ParsePyTorchVersion(flags.torch_version, "--torch-version");
  answer.config = graph::ParseAllocatorConfig(
      flags.allocator.empty() ? "native" : flags.allocator, "--allocator",
      version);
  if (!flags.device_memory.empty()) {
    answer.device_bytes =
        graph::ParseByteSize(flags.device_memory, "--device-memory");
  }
  answer.events = graph::ReadAllocatorEvents(flags.events);
  const bool has_timeline = !flags.timeline.empty();
  if (has_timeline) {
    timeline =
        "event,kind,id,bytes,stream,segment,offset,allocated_bytes,"
        "reserved_bytes,retries\n";
  }
  answer.replay = graph::ReplayEvents(
      answer.events, answer.config, answer.device(),
      [&](size_t index, const graph::CachingAllocator& allocator,
          graph::BlockId block) {
        if (!has_timeline) return;
        timeline += TimelineRow(answer.events, index, allocator, block);
      });
  answer.segments = graph::SegmentsAtPeak(answer.events, answer.config,
                                          answer.device(), answer.replay);
  if (!flags.without_least) {
    answer.least = graph::FindLeastDevice(answer.events, answer.config);
    answer.has_least = true;
  }
  return answer;
}

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

std::string PeakTable(const EventAnswer& answer, const Terminal& terminal) {
  using enum Table::Align;
  Table table({kLeft, kLeft, kRight, kRight, kRight, kRight, kRight});
  table.AddRow({"stream", "pool", "segments", "reserved", "allocated", "free",
                "largest free"});
  for (const PoolRow& row : PoolRows(answer.segments)) {
    table.AddRow({fmt::format("{}", row.stream), PoolText(row),
                  FormatCount(row.segments), graph::FormatBytes(row.bytes),
                  graph::FormatBytes(row.allocated_bytes),
                  graph::FormatBytes(row.bytes - row.allocated_bytes),
                  graph::FormatBytes(row.largest_free_bytes)});
  }
  return table.ToString(terminal);
}

std::string PlaceText(const EventAnswer& answer, int64_t event) {
  return fmt::format(
      "event {} (line {})", FormatCount(event),
      FormatCount(answer.events.lines[static_cast<size_t>(event)]));
}

std::string LeastText(const EventAnswer& answer) {
  if (!answer.has_least) return "";
  if (!answer.least) return "least device: none is large enough\n";
  return fmt::format(
      "least device: {}{}\n", FormatBytesExactly(answer.least->bytes),
      answer.least->is_least ? "" : ", by halving: a smaller one may do");
}

std::string ReclaimText(const EventAnswer& answer) {
  int64_t collected = 0;
  int64_t oversize = 0;
  int64_t released = 0;
  for (const graph::Reclaim& reclaim : answer.replay.reclaims) {
    collected += reclaim.collected_bytes;
    oversize += reclaim.oversize_bytes;
    released += reclaim.released_bytes;
  }
  if (answer.replay.reclaims.empty()) return "";
  const int64_t retries = answer.replay.counts.retries;
  std::string text =
      fmt::format("{} {}, for which the cache gave {} back",
                  FormatCount(retries), retries == 1 ? "retry" : "retries",
                  graph::FormatManyBytes(static_cast<double>(released)));
  if (collected > 0) {
    text += fmt::format("; garbage collection gave {}",
                        graph::FormatManyBytes(static_cast<double>(collected)));
  }
  if (oversize > 0) {
    text += fmt::format("; blocks above max_split_size_mb gave {}",
                        graph::FormatManyBytes(static_cast<double>(oversize)));
  }
  return text + "\n";
}

std::string ToText(const EventAnswer& answer, const Terminal& terminal) {
  const Replay& replay = answer.replay;
  std::string text =
      fmt::format("{} events, PyTorch {}.{}, {} segments, {}\n\n",
                  FormatCount(std::ssize(answer.events.events)),
                  answer.config.version.major, answer.config.version.minor,
                  answer.config.expandable_segments ? "expandable" : "native",
                  answer.device_bytes
                      ? fmt::format("a device of {}",
                                    graph::FormatBytes(*answer.device_bytes))
                      : "a device without limit");
  text += fmt::format("allocated at most: {}\n",
                      FormatBytesExactly(replay.counts.peak_allocated_bytes));
  text += fmt::format("reserved at most: {}\n",
                      FormatBytesExactly(replay.counts.peak_reserved_bytes));
  text += LeastText(answer);
  text += ReclaimText(answer);
  if (replay.failure) {
    const graph::ReplayFailure& failure = *replay.failure;
    text += fmt::format(
        "{}: {} on stream {} at {}, with {} allocated, {} reserved and {} of "
        "the device free\n",
        terminal.Bold("out of memory"), graph::FormatBytes(failure.bytes),
        failure.stream, PlaceText(answer, failure.event),
        graph::FormatBytes(failure.allocated_bytes),
        graph::FormatBytes(failure.reserved_bytes),
        graph::FormatBytes(failure.free_bytes));
  }
  if (answer.segments.empty()) return text;
  return text +
         fmt::format("\n{} at {}:\n",
                     replay.failure ? "Where it fails," : "Most is reserved",
                     PlaceText(answer, replay.failure ? replay.failure->event
                                                      : replay.peak_event)) +
         PeakTable(answer, terminal);
}

}  // namespace

void EventFlags::AddTo(CLI::App& app) {
  app.add_option("--events", events,
                 "run these allocations on PyTorch's allocator, in place of a "
                 "trace")
      ->type_name("FILE");
  app.add_option("--allocator", allocator,
                 "with --events: native, or PYTORCH_ALLOC_CONF's text "
                 "(default: native)")
      ->type_name("CONF");
  app.add_option("--device-memory", device_memory,
                 "with --events: the device's memory (default: no limit)")
      ->type_name("SIZE");
  app.add_option("--torch-version", torch_version,
                 fmt::format("with --events: the version of PyTorch, {}.{} to "
                             "{}.{} (default: the newest)",
                             graph::kOldestAllocator.major,
                             graph::kOldestAllocator.minor,
                             graph::kNewestAllocator.major,
                             graph::kNewestAllocator.minor))
      ->type_name("VERSION");
  app.add_flag("--without-least-device", without_least,
               "with --events: do not search the least device");
}

std::string_view EventFlags::FlagWithoutEvents() const {
  if (!allocator.empty()) return "--allocator";
  if (!device_memory.empty()) return "--device-memory";
  if (!torch_version.empty()) return "--torch-version";
  return without_least ? "--without-least-device" : "";
}

int RunSimulateEvents(const EventFlags& flags, const Terminal& terminal) {
  std::string timeline;
  const EventAnswer answer = Simulate(flags, timeline);
  std::vector<graph::NamedText> files;
  if (!flags.timeline.empty()) files.push_back({flags.timeline, timeline});
  if (!flags.output.empty()) files.push_back({flags.output, ToJson(answer)});
  graph::WriteFiles(files);
  terminal.Print(flags.json ? ToJson(answer)
                            : BrokenLines(ToText(answer, terminal), terminal));
  return kExitOk;
}

}  // namespace acplan::cli
