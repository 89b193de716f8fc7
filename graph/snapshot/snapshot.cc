#include "graph/snapshot/snapshot.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include "graph/allocator/allocator_events.h"
#include "graph/allocator/device_memory.h"
#include "graph/base/json_fields.h"
#include "graph/base/json_scan.h"

namespace acplan::graph {
namespace {

constexpr int64_t kMostAddress = int64_t{1} << 60;

constexpr std::array<std::string_view, 8> kEventKinds = {
    "alloc",        "free_requested", "free_completed", "segment_alloc",
    "segment_free", "segment_map",    "segment_unmap",  "oom"};
constexpr std::array<std::string_view, 3> kBlockStates = {"free", "allocated",
                                                          "waiting"};

size_t PlaceOf(const JsonField& field,
               std::span<const std::string_view> names) {
  const auto match = std::ranges::find(names, field.String());
  if (match == names.end()) {
    field.Fail(fmt::format("one of {}", fmt::join(names, ", ")));
  }
  return static_cast<size_t>(match - names.begin());
}

// The parts of a document that others refer to.
struct Names {
  int64_t lines = 0;
  std::map<std::pair<int64_t, int64_t>, int64_t> pools = {};
};

int32_t ParseLine(const JsonField& field, const Names& names) {
  return static_cast<int32_t>(field.Int(-1, names.lines - 1));
}

SnapshotEvent ParseEvent(const JsonField& field, const Names& names) {
  const std::vector<JsonField> parts = field.Elements();
  if (parts.size() != 5 && parts.size() != 6) {
    field.Fail("kind, address, bytes, stream and line");
  }
  SnapshotEvent event = {
      .kind = static_cast<SnapshotEvent::Kind>(PlaceOf(parts[0], kEventKinds)),
      .address = parts[1].Int(0, kMostAddress),
      .bytes = parts[2].Int(0, kLargestRequest),
      .stream = parts[3].Int(0, kMostAddress),
      .line = ParseLine(parts[4], names)};
  if (parts.size() == 6) {
    if (parts[5].String() != "cache") parts[5].Fail("cache");
    event.is_cache_call = true;
  }
  return event;
}

std::vector<SnapshotBlock> ParseBlocks(const JsonField& field,
                                       const SnapshotSegment& segment,
                                       const Names& names) {
  std::vector<SnapshotBlock> blocks;
  int64_t address = segment.address;
  const int64_t end = segment.address + segment.bytes;
  for (const JsonField& element : field.Elements()) {
    const std::vector<JsonField> parts = element.Elements();
    if (parts.size() != 5) {
      element.Fail("state, address, bytes, asked bytes and line");
    }
    const SnapshotBlock block = {
        .state =
            static_cast<SnapshotBlock::State>(PlaceOf(parts[0], kBlockStates)),
        .address = parts[1].Int(0, kMostAddress),
        .bytes = parts[2].Int(1, kLargestRequest),
        .asked_bytes = parts[3].Int(0, kLargestRequest),
        .line = ParseLine(parts[4], names)};
    if (block.address != address || block.bytes > end - address) {
      element.Complain("expected blocks that fill their segment");
    }
    address += block.bytes;
    blocks.push_back(block);
  }
  if (address != end) field.Complain("expected blocks that fill their segment");
  return blocks;
}

SnapshotSegment ParseSegment(const JsonField& field, Names& names) {
  SnapshotSegment segment = {
      .address = field.Get("address").Int(0, kMostAddress),
      .bytes = field.Get("bytes").Int(1, kLargestDevice),
      .stream = field.Get("stream").Int(0, kMostAddress),
      .is_expandable = field.Get("expandable").Bool()};
  constexpr std::array<std::string_view, 2> kPools = {"large", "small"};
  segment.is_small = PlaceOf(field.Get("pool"), kPools) == 1;
  if (field.Has("private_pool")) {
    const JsonField pool = field.Get("private_pool");
    const std::vector<JsonField> parts = pool.Elements();
    if (parts.size() != 2) pool.Fail("two numbers");
    const auto next = static_cast<int64_t>(names.pools.size()) + 1;
    segment.private_pool = names.pools
                               .try_emplace({parts[0].Int(0, int64_t{1} << 62),
                                             parts[1].Int(0, int64_t{1} << 62)},
                                            next)
                               .first->second;
  }
  segment.blocks = ParseBlocks(field.Get("blocks"), segment, names);
  return segment;
}

DeviceSnapshot ParseDevice(const JsonField& field, Names& names) {
  DeviceSnapshot device;
  const JsonField segments = field.Get("segments");
  int64_t bytes = 0;
  for (const JsonField& element : segments.Elements()) {
    device.segments.push_back(ParseSegment(element, names));
    bytes += device.segments.back().bytes;
    if (bytes > kLargestDevice) {
      segments.Complain("expected at most 16 TiB in all, found more");
    }
  }
  std::ranges::sort(device.segments, {}, &SnapshotSegment::address);
  for (size_t k = 1; k < device.segments.size(); ++k) {
    const SnapshotSegment& before = device.segments[k - 1];
    if (before.address + before.bytes > device.segments[k].address) {
      segments.Complain("expected segments that do not overlap");
    }
  }
  for (const JsonField& element : field.Get("events").Elements()) {
    device.events.push_back(ParseEvent(element, names));
  }
  return device;
}

}  // namespace

Snapshot ReadSnapshot(const std::filesystem::path& path) {
  return ParseSnapshot(ReadJsonText(path), path.string());
}

Snapshot ParseSnapshot(std::string_view text, std::string_view name) {
  const nlohmann::json document = ParseJson(text, name);
  const JsonField root(document, std::string(name));
  RequireFormat(root, "acplan.snapshot", 1);
  Snapshot snapshot;
  snapshot.allocator = Optional(root, "allocator",
                                [](const JsonField& f) { return f.String(); });
  snapshot.lines = root.Get("lines").Strings();
  Names names = {.lines = static_cast<int64_t>(snapshot.lines.size())};
  for (const JsonField& element : root.Get("devices").Elements()) {
    snapshot.devices.push_back(ParseDevice(element, names));
  }
  return snapshot;
}

}  // namespace acplan::graph
