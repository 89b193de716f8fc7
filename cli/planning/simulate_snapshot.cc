#include "cli/planning/simulate_snapshot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>
#include <vector>

#include "cli/input/exit_codes.h"
#include "cli/planning/allocator_json.h"
#include "cli/planning/allocator_text.h"
#include "cli/terminal/text.h"
#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/layout_after.h"
#include "graph/allocator/least_device.h"
#include "graph/allocator/set_up.h"
#include "graph/base/byte_size.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/base/json_text.h"
#include "graph/base/message_text.h"
#include "graph/snapshot/recorded_run.h"
#include "graph/snapshot/recording.h"
#include "graph/snapshot/snapshot.h"

namespace acplan::cli {
namespace {

using graph::AllocatorConfig;
using graph::AllocatorEvent;
using graph::Replay;
using nlohmann::ordered_json;

struct SnapshotAnswer {
  AllocatorQuestion question;
  AllocatorConfig recorded_config;
  std::vector<std::string> lines;  // of Python
  size_t device = 0;
  size_t snapshot_events = 0;
  graph::Recording recording = {};
  graph::RecordingComparison comparison = {};
  graph::RecordedRun run = {};
  Replay replay = {};
  graph::MemoryLayout peak = {};
  std::optional<graph::LeastDevice> least = {};

  int64_t PeakEvent() const {
    return replay.failure ? replay.failure->event : replay.peak_event;
  }
};

std::string LineText(const SnapshotAnswer& answer, int32_t line) {
  return line < 0 ? "" : answer.lines[static_cast<size_t>(line)];
}

std::vector<LineHoles> HolesByLine(const SnapshotAnswer& answer) {
  std::vector<HoleBesideLines> holes;
  for (const graph::BlockHole& hole : answer.peak.holes) {
    holes.push_back({.bytes = hole.bytes, .lines = {}});
    for (const int32_t block : hole.neighbours) {
      if (block < 0) continue;
      const std::string line =
          LineText(answer, answer.run.block_lines[static_cast<size_t>(block)]);
      holes.back().lines.push_back(line.empty() ? "lines that were not recorded"
                                                : line);
    }
  }
  return HolesByLine(holes);
}

int64_t StartBytes(const SnapshotAnswer& answer) {
  int64_t bytes = 0;
  for (const graph::SegmentLayout& segment : answer.recording.start) {
    for (const graph::BlockLayout& block : segment.blocks) {
      bytes += block.block < 0 ? 0 : block.bytes;
    }
  }
  return bytes;
}

ordered_json EventJson(const SnapshotAnswer& answer, int64_t event) {
  const auto k = static_cast<size_t>(event);
  const int64_t index = answer.run.indices[k];
  return {{"event", index < 0 ? ordered_json(nullptr) : ordered_json(index)},
          {"source", LineText(answer, answer.run.lines[k])}};
}

ordered_json RecordedJson(const SnapshotAnswer& answer) {
  const graph::Recording& recording = answer.recording;
  const graph::RecordingComparison& comparison = answer.comparison;
  ordered_json json = {
      {"allocations", recording.allocations},
      {"older_blocks", recording.start_blocks},
      {"older_bytes", StartBytes(answer)},
      {"contradictions", recording.contradictions},
      {"allocated_bytes", comparison.peak_allocated_bytes},
      {"reserved_bytes", recording.peak_reserved_bytes},
      {"retries", recording.retries},
      {"failures", recording.failures},
      {"device_bytes", recording.device_bytes
                           ? ordered_json(*recording.device_bytes)
                           : nullptr}};
  json["simulated"] = {
      {"reserved_bytes", comparison.peak_reserved_bytes},
      {"equal_allocations", comparison.equal_allocations},
      {"first_difference", comparison.first_difference
                               ? ordered_json(*comparison.first_difference)
                               : nullptr},
      {"segments", comparison.segments},
      {"equal_segments", comparison.equal_segments}};
  return json;
}

ordered_json PeakJson(const SnapshotAnswer& answer) {
  ordered_json json = answer.PeakEvent() < 0
                          ? ordered_json({{"event", nullptr}, {"source", ""}})
                          : EventJson(answer, answer.PeakEvent());
  json["allocated_bytes"] = answer.peak.allocated_bytes;
  json["reserved_bytes"] = answer.peak.reserved_bytes;
  json["hole_bytes"] = answer.peak.HoleBytes();
  json["beside_holes"] = BesideHolesJson(HolesByLine(answer));
  json["segments"] = SegmentsJson(answer.peak.segments);
  return json;
}

std::string ToJson(const SnapshotAnswer& answer) {
  const Replay& replay = answer.replay;
  ordered_json json =
      AllocatorJson(answer.question, replay.counts, answer.least);
  json["device"] = answer.device;
  json["events"] = answer.snapshot_events;
  json["recorded"] = RecordedJson(answer);
  json["keeps_older_blocks"] = answer.run.keeps_start;
  json["reclaims"] = ReclaimsJson(
      replay.reclaims, [&](int64_t event) { return EventJson(answer, event); });
  json["failure"] = FailureJson(replay.failure, [&](int64_t event) {
    ordered_json place = EventJson(answer, event);
    place["failed_in_recording"] =
        static_cast<bool>(answer.run.is_failure[static_cast<size_t>(event)]);
    return place;
  });
  json["peak"] = PeakJson(answer);
  return graph::IndentedText(json);
}

std::string PlaceText(const SnapshotAnswer& answer, int64_t event) {
  if (event < 0) return "the beginning of the recording";
  const auto k = static_cast<size_t>(event);
  const std::string line = LineText(answer, answer.run.lines[k]);
  const std::string place =
      answer.run.indices[k] < 0
          ? "a block from before the recording"
          : fmt::format("event {}", FormatCount(answer.run.indices[k]));
  return line.empty() ? place : fmt::format("{} ({})", place, line);
}

std::string RecordedText(const SnapshotAnswer& answer) {
  const graph::Recording& recording = answer.recording;
  const graph::RecordingComparison& comparison = answer.comparison;
  std::string text = fmt::format(
      "Device {}, {} events, {} allocations, recorded with {} segments\n",
      answer.device, FormatCount(std::ssize(recording.events)),
      FormatCount(recording.allocations),
      answer.recorded_config.expandable_segments ? "expandable" : "native");
  if (recording.start_blocks > 0) {
    text += fmt::format(
        "note: {} {} of {} are older than the recording, which began later "
        "than the program or lost its first events\n",
        FormatCount(recording.start_blocks),
        recording.start_blocks == 1 ? "block" : "blocks",
        graph::FormatBytes(StartBytes(answer)));
  }
  if (recording.contradictions > 0) {
    text += fmt::format("note: {} {} the snapshot and {} left out\n",
                        FormatCount(recording.contradictions),
                        recording.contradictions == 1 ? "event contradicts"
                                                      : "events contradict",
                        recording.contradictions == 1 ? "is" : "are");
  }
  text += fmt::format("peak reserved: {}\n",
                      FormatBytesExactly(recording.peak_reserved_bytes));
  if (recording.retries > 0) {
    text += fmt::format("retries: {}\n", FormatCount(recording.retries));
  }
  if (recording.failures > 0) {
    text +=
        fmt::format("out of memory: {} {}, on a device with {} for PyTorch\n",
                    FormatCount(recording.failures),
                    recording.failures == 1 ? "time" : "times",
                    graph::FormatBytes(*recording.device_bytes));
  }
  text += fmt::format(
      "simulated again: {} of {} allocations at the same address, {} of {} "
      "segments with the same blocks",
      FormatCount(comparison.equal_allocations),
      FormatCount(comparison.allocations),
      FormatCount(comparison.equal_segments), FormatCount(comparison.segments));
  if (comparison.first_difference) {
    text += fmt::format("; the first difference is event {}",
                        FormatCount(*comparison.first_difference));
  }
  return text + "\n";
}

std::string ToText(const SnapshotAnswer& answer, const Terminal& terminal) {
  const Replay& replay = answer.replay;
  std::string text = RecordedText(answer);
  text += fmt::format("\n{}:\n", AllocatorText(answer.question));
  if (!answer.run.keeps_start && answer.recording.start_blocks > 0) {
    text +=
        "note: blocks that are older than the recording are allocated first, "
        "by address\n";
  }
  text += PeaksText(answer.question, replay.counts, answer.least);
  text += ReclaimsText(replay);
  if (replay.failure) {
    text += FailureText(*replay.failure,
                        PlaceText(answer, replay.failure->event), terminal);
  }
  if (answer.peak.segments.empty()) return text;
  return text +
         PeakTitle(replay.failure.has_value(),
                   PlaceText(answer, answer.PeakEvent())) +
         SegmentsTable(answer.peak.segments, terminal) +
         HolesText(answer.peak.HoleBytes(), HolesByLine(answer));
}

// A row for an event, as the timeline of --events has it.
std::string TimelineRow(const graph::RecordedRun& run, size_t index,
                        const graph::CachingAllocator& allocator,
                        graph::BlockId block) {
  const AllocatorEvent& event = run.events.events[index];
  const std::string id =
      event.block < 0
          ? ""
          : fmt::format("{}",
                        run.events.block_ids[static_cast<size_t>(event.block)]);
  const graph::AllocatorCounts& counts = allocator.counts();
  return fmt::format("{},{},{},{},{},{},{},{},{}\n", run.indices[index],
                     EventKindText(event.kind), id, event.bytes, event.stream,
                     PlaceFields(allocator, block), counts.allocated_bytes,
                     counts.reserved_bytes, counts.retries);
}

size_t ChosenDevice(const graph::Snapshot& snapshot,
                    const SnapshotFlags& flags) {
  const std::string name = graph::OneLine(flags.snapshot, 400);
  if (snapshot.devices.empty()) {
    throw InputError(fmt::format("{}: has no device", name));
  }
  if (!flags.device) {
    const auto most = std::ranges::max_element(
        snapshot.devices, {},
        [](const graph::DeviceSnapshot& d) { return d.events.size(); });
    return static_cast<size_t>(most - snapshot.devices.begin());
  }
  const auto count = std::ssize(snapshot.devices);
  if (*flags.device < 0 || *flags.device >= count) {
    throw InputError(fmt::format("--device: expected 0 to {}, found {}",
                                 count - 1, *flags.device));
  }
  return static_cast<size_t>(*flags.device);
}

// Refuses a device that is smaller than the blocks of the beginning.
void RequireRoom(const SnapshotAnswer& answer) {
  const int64_t bytes =
      graph::BytesInUse(answer.question.config, answer.run.events.start);
  if (bytes <= answer.question.device()) return;
  throw InputError(fmt::format(
      "--device-memory: expected at least {}, which blocks take when the "
      "recording begins, found {}",
      graph::FormatBytes(bytes), graph::FormatBytes(answer.question.device())));
}

SnapshotAnswer Simulate(const SnapshotFlags& flags, std::string& timeline) {
  AllocatorQuestion question = flags.allocator.Question();
  graph::Snapshot snapshot = graph::ReadSnapshot(flags.snapshot);
  const std::string name =
      fmt::format("{}: allocator", graph::OneLine(flags.snapshot, 400));
  SnapshotAnswer answer;
  answer.question = std::move(question);
  answer.lines = std::move(snapshot.lines);
  answer.device = ChosenDevice(snapshot, flags);
  const graph::DeviceSnapshot& device = snapshot.devices[answer.device];
  const bool is_expandable = std::ranges::any_of(
      device.segments, &graph::SnapshotSegment::is_expandable);
  answer.recorded_config = graph::ParseAllocatorConfig(
      snapshot.allocator.value_or(is_expandable ? "expandable_segments:True"
                                                : "native"),
      name, answer.question.config.version);
  if (flags.allocator.allocator.empty()) {
    answer.question.config = answer.recorded_config;
  }
  answer.snapshot_events = device.events.size();
  answer.recording = graph::MakeRecording(
      device, answer.recorded_config,
      fmt::format("{}: devices[{}]", flags.snapshot, answer.device));
  answer.comparison = graph::CompareWithRecording(device, answer.recording,
                                                  answer.recorded_config);
  const AllocatorConfig& config = answer.question.config;
  answer.run =
      graph::MakeRecordedRun(answer.recording, answer.recorded_config, config);
  RequireRoom(answer);
  const bool has_timeline = !flags.timeline.empty();
  if (has_timeline) {
    timeline =
        "event,kind,id,bytes,stream,segment,offset,allocated_bytes,"
        "reserved_bytes,retries\n";
  }
  answer.replay = graph::ReplayEvents(
      answer.run.events, config, answer.question.device(),
      [&](size_t index, const graph::EventRunner& runner,
          graph::BlockId block) {
        if (has_timeline) {
          timeline += TimelineRow(answer.run, index, runner.allocator(), block);
        }
        return true;
      });
  answer.peak = graph::LayoutAfter(
      answer.run.events, config, answer.question.device(), answer.PeakEvent());
  if (answer.question.wants_least_device) {
    answer.least = graph::FindLeastDevice(answer.run.events, config);
  }
  return answer;
}

}  // namespace

int RunSimulateSnapshot(const SnapshotFlags& flags, const Terminal& terminal) {
  std::string timeline;
  const SnapshotAnswer answer = Simulate(flags, timeline);
  std::vector<graph::NamedText> files;
  if (!flags.timeline.empty()) files.push_back({flags.timeline, timeline});
  if (!flags.output.empty()) files.push_back({flags.output, ToJson(answer)});
  graph::WriteFiles(files);
  terminal.Print(flags.json ? ToJson(answer)
                            : BrokenLines(ToText(answer, terminal), terminal));
  return kExitOk;
}

}  // namespace acplan::cli
