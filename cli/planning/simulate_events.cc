#include "cli/planning/simulate_events.h"

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
#include "graph/allocator/allocator_events.h"
#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/least_device.h"
#include "graph/base/file_io.h"
#include "graph/base/json_text.h"

namespace acplan::cli {
namespace {

using graph::AllocatorEvent;
using graph::AllocatorEvents;
using graph::Replay;
using nlohmann::ordered_json;

struct EventAnswer {
  AllocatorQuestion question;
  AllocatorEvents events;
  Replay replay = {};
  std::vector<graph::SegmentUse> segments = {};  // at the peak
  std::optional<graph::LeastDevice> least = {};
};

// The number of an event among all, from 0 on, and its line in the file.
ordered_json EventJson(const EventAnswer& answer, int64_t event) {
  return {{"event", event},
          {"line", answer.events.lines[static_cast<size_t>(event)]}};
}

std::string ToJson(const EventAnswer& answer) {
  const Replay& replay = answer.replay;
  const EventPlace place_of = [&](int64_t event) {
    ordered_json json = EventJson(answer, event);
    const auto block = answer.events.events[static_cast<size_t>(event)].block;
    if (block >= 0) {
      json["id"] = answer.events.block_ids[static_cast<size_t>(block)];
    }
    return json;
  };
  ordered_json json =
      AllocatorJson(answer.question, replay.counts, answer.least);
  json["events"] = answer.events.events.size();
  json["reclaims"] = ReclaimsJson(
      replay.reclaims, [&](int64_t event) { return EventJson(answer, event); });
  json["failure"] = FailureJson(replay.failure, place_of);
  if (replay.peak_event >= 0) {
    json["peak"] = EventJson(
        answer, replay.failure ? replay.failure->event : replay.peak_event);
    json["peak"]["segments"] = SegmentsJson(answer.segments);
  }
  return graph::IndentedText(json);
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
  const graph::AllocatorCounts& counts = allocator.counts();
  return fmt::format("{},{},{},{},{},{},{},{},{}\n", index,
                     EventKindText(event.kind), id, event.bytes, event.stream,
                     PlaceFields(allocator, block), counts.allocated_bytes,
                     counts.reserved_bytes, counts.retries);
}

EventAnswer Simulate(const EventFlags& flags, std::string& timeline) {
  EventAnswer answer{.question = flags.allocator.Question(),
                     .events = graph::ReadAllocatorEvents(flags.events)};
  const AllocatorQuestion& question = answer.question;
  const bool has_timeline = !flags.timeline.empty();
  if (has_timeline) {
    timeline =
        "event,kind,id,bytes,stream,segment,offset,allocated_bytes,"
        "reserved_bytes,retries\n";
  }
  answer.replay = graph::ReplayEvents(
      answer.events, question.config, question.device(),
      [&](size_t index, const graph::EventRunner& runner,
          graph::BlockId block) {
        if (has_timeline) {
          timeline +=
              TimelineRow(answer.events, index, runner.allocator(), block);
        }
        return true;
      });
  answer.segments = graph::SegmentsAtPeak(answer.events, question.config,
                                          question.device(), answer.replay);
  if (question.wants_least_device) {
    answer.least = graph::FindLeastDevice(answer.events, question.config);
  }
  return answer;
}

std::string PlaceText(const EventAnswer& answer, int64_t event) {
  return fmt::format(
      "event {} (line {})", FormatCount(event),
      FormatCount(answer.events.lines[static_cast<size_t>(event)]));
}

std::string ToText(const EventAnswer& answer, const Terminal& terminal) {
  const Replay& replay = answer.replay;
  std::string text = fmt::format("{} events, {}\n\n",
                                 FormatCount(std::ssize(answer.events.events)),
                                 AllocatorText(answer.question));
  text += PeaksText(answer.question, replay.counts, answer.least);
  text += ReclaimsText(replay);
  if (replay.failure) {
    text += FailureText(*replay.failure,
                        PlaceText(answer, replay.failure->event), terminal);
  }
  if (answer.segments.empty()) return text;
  return text +
         PeakTitle(replay.failure.has_value(),
                   PlaceText(answer, replay.failure ? replay.failure->event
                                                    : replay.peak_event)) +
         SegmentsTable(answer.segments, terminal);
}

}  // namespace

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
