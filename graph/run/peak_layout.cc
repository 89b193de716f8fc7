#include "graph/run/peak_layout.h"

#include <cstddef>

#include "graph/allocator/layout_after.h"

namespace acplan::graph {

int64_t PeakLayout::HoleBytes() const {
  int64_t bytes = 0;
  for (const Hole& hole : holes) bytes += hole.bytes;
  return bytes;
}

PeakLayout LayoutAtPeak(const TrainingRun& run, const AllocatorConfig& config,
                        int64_t device_bytes, const RunOutcome& outcome) {
  const Replay& replay = outcome.replay;
  PeakLayout layout{.event = replay.failure ? replay.failure->event
                                            : replay.peak_event};
  const MemoryLayout memory =
      LayoutAfter(run.events, config, device_bytes, layout.event);
  layout.allocated_bytes = memory.allocated_bytes;
  layout.reserved_bytes = memory.reserved_bytes;
  layout.segments = memory.segments;
  std::vector<int64_t> events(run.storages.size(), -1);
  for (int64_t k = 0; k <= layout.event; ++k) {
    const AllocatorEvent& event = run.events.events[static_cast<size_t>(k)];
    if (event.kind != AllocatorEvent::Kind::kAllocate) continue;
    events[static_cast<size_t>(event.block)] = k;
  }
  const auto event_of = [&](int32_t block) {
    return block < 0 ? -1 : events[static_cast<size_t>(block)];
  };
  for (const BlockHole& hole : memory.holes) {
    layout.holes.push_back({.bytes = hole.bytes,
                            .neighbours = {event_of(hole.neighbours[0]),
                                           event_of(hole.neighbours[1])}});
  }
  for (const BlockPlace& place : memory.blocks) {
    const bool is_free = place.block < 0;
    layout.blocks.push_back(
        {.segment = place.segment,
         .offset = place.offset,
         .bytes = place.bytes,
         .hole_bytes = place.hole_bytes,
         .storage = is_free ? StorageId(kNone)
                            : run.storages[static_cast<size_t>(place.block)],
         .event = event_of(place.block)});
  }
  return layout;
}

}  // namespace acplan::graph
