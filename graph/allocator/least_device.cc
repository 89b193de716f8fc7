#include "graph/allocator/least_device.h"

#include <algorithm>
#include <vector>

#include "graph/allocator/blocks.h"
#include "graph/allocator/device_memory.h"
#include "graph/allocator/set_up.h"

// A run on a device of d bytes asks for d only in comparisons
// that come out one way below some size and the other way from that size on.
// The allocator keeps the smallest such size above d, n: on every device from d
// to n - 1 all comparisons come out alike, so the run is the same, and if it
// fails on d it fails on all of them. So the next candidate is n. No device
// below the bytes of the blocks that live at once can do.

namespace acplan::graph {
namespace {

// A run has so many parts, or fewer of kLeastOfPart events: each costs a layout of the
// memory, which takes as long as a hundred events.
constexpr size_t kParts = 64;
constexpr size_t kLeastOfPart = 512;

size_t PartOf(const AllocatorEvents& events, const LeastDeviceSearch& search) {
  if (search.part_events > 0) return search.part_events;
  return std::max(events.events.size() / kParts, kLeastOfPart);
}

struct RunQuestion {
  const AllocatorEvents& events;
  const AllocatorConfig& config;
  const RunEnds& ends;
  size_t part_events;
};

// Returns whether the run ends on the device, and counts it.
bool Fits(const RunQuestion& question, int64_t device_bytes,
          LeastDevice& least) {
  const DeviceTrial trial = ResumedRuns(question.events, question.config,
                                        question.ends, question.part_events)
                                .Run(device_bytes);
  ++least.runs;
  least.events += trial.events;
  return trial.fits;
}

// Halves what is left between a device that fails and the largest one. `least` has the
// runs so far.
std::optional<LeastDevice> Halve(const RunQuestion& question, int64_t low,
                                 LeastDevice least) {
  int64_t high = low;
  bool fits = false;
  while (!fits && high < kLargestDevice) {
    low = high;
    high = std::min(2 * high, kLargestDevice);
    fits = Fits(question, high, least);
  }
  if (!fits) return std::nullopt;
  while (high - low > kDevicePage) {
    const int64_t middle = low + (high - low) / 2 / kDevicePage * kDevicePage;
    const int64_t device = middle == low ? low + kDevicePage : middle;
    (Fits(question, device, least) ? high : low) = device;
  }
  least.bytes = high;
  least.is_least = false;
  return least;
}

}  // namespace

std::optional<LeastDevice> FindLeastDevice(const AllocatorEvents& events,
                                           const AllocatorConfig& config,
                                           const LeastDeviceSearch& search,
                                           const RunEnds& ends) {
  const RunQuestion question{.events = events,
                             .config = config,
                             .ends = ends,
                             .part_events = PartOf(events, search)};
  ResumedRuns trials(events, config, ends, question.part_events);
  LeastDevice least;
  int64_t device = std::max(search.from_bytes, MostBlockBytes(events, config));
  while (device <= kLargestDevice) {
    const DeviceTrial trial = trials.Run(device);
    ++least.runs;
    least.events += trial.events;
    if (trial.fits) {
      least.bytes = device;
      return least;
    }
    if (least.events > search.most_events)
      return Halve(question, device, least);
    device = trial.next_device_bytes;
  }
  return std::nullopt;
}

int64_t MostBlockBytes(const AllocatorEvents& events,
                       const AllocatorConfig& config) {
  std::vector<int64_t> sizes(events.block_ids.size(), 0);
  int64_t bytes = 0;
  for (const SegmentLayout& segment : events.start) {
    for (const BlockLayout& block : segment.blocks) {
      if (block.block < 0) continue;
      sizes[static_cast<size_t>(block.block)] = block.bytes;
      bytes += block.bytes;
    }
  }
  int64_t most =
      std::max<int64_t>({1, bytes, BytesInUse(config, events.start)});
  for (const AllocatorEvent& event : events.events) {
    if (event.kind == AllocatorEvent::Kind::kAllocate && event.bytes > 0) {
      int64_t& size = sizes[static_cast<size_t>(event.block)];
      size = RoundedBytes(config, event.bytes);
      bytes += size;
      most = std::max(most, bytes);
    } else if (event.kind == AllocatorEvent::Kind::kFree) {
      bytes -= sizes[static_cast<size_t>(event.block)];
    }
  }
  return most;
}

}  // namespace acplan::graph
