// Whatever the bytes: they are a snapshot, or an InputError of one line. A snapshot's
// recordings are undone and run again, with their settings and with others, and
// the sums of blocks are those that the allocator counts.

#include <cstdint>
#include <string>
#include <string_view>

#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/device_memory.h"
#include "graph/allocator/layout_after.h"
#include "graph/allocator/set_up.h"
#include "graph/base/input_error.h"
#include "graph/snapshot/recorded_run.h"
#include "graph/snapshot/recording.h"
#include "graph/snapshot/snapshot.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"

namespace {

namespace graph = acplan::graph;

void Run(const graph::RecordedRun& run, const graph::AllocatorConfig& config,
         int64_t device_bytes) {
  const graph::Replay replay =
      graph::ReplayEvents(run.events, config, device_bytes);
  const int64_t last =
      replay.failure ? replay.failure->event : replay.peak_event;
  const graph::MemoryLayout layout =
      graph::LayoutAfter(run.events, config, device_bytes, last);
  int64_t reserved = 0;
  int64_t allocated = 0;
  for (const graph::SegmentUse& use : layout.segments) {
    Require(use.bytes > 0 && use.allocated_bytes <= use.bytes,
            "no more allocated than there is");
    reserved += use.bytes;
    allocated += use.allocated_bytes;
  }
  Require(reserved == layout.reserved_bytes, "reserved bytes");
  Require(allocated == layout.allocated_bytes, "allocated bytes");
}

void RunDevice(const graph::Snapshot& snapshot,
               const graph::DeviceSnapshot& device) {
  const graph::AllocatorConfig recorded = graph::ParseAllocatorConfig(
      snapshot.allocator.value_or("native"), "snapshot.json: allocator");
  const graph::Recording recording =
      graph::MakeRecording(device, recorded, "snapshot.json: devices");
  const graph::RecordingComparison comparison =
      graph::CompareWithRecording(device, recording, recorded);
  Require(comparison.allocations == recording.allocations, "allocations");
  for (const char* text : {"native", "expandable_segments:True"}) {
    const graph::AllocatorConfig config =
        graph::ParseAllocatorConfig(text, "--allocator");
    const graph::RecordedRun run =
        graph::MakeRecordedRun(recording, recorded, config);
    Run(run, config, graph::kLargestDevice);
    const int64_t least = graph::BytesInUse(config, run.events.start);
    Run(run, config, least + (int64_t{24} << 20));
  }
}

}  // namespace

std::string ValidInput(unsigned) { return ""; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  graph::Snapshot snapshot;
  try {
    snapshot = graph::ParseSnapshot(text, "snapshot.json");
  } catch (const acplan::InputError& error) {
    CheckMessage(error, "snapshot.json: ");
    return 0;
  }
  for (const graph::DeviceSnapshot& device : snapshot.devices) {
    try {
      RunDevice(snapshot, device);
    } catch (const acplan::InputError& error) {
      CheckMessage(error, "snapshot.json: ");
    }
  }
  return 0;
}
