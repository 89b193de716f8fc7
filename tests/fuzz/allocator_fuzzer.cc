// Whatever the bytes: the first line is a configuration and the rest are events, or
// either is an InputError of one line. The events run on a small device and on one
// without limit, and the sums of blocks are those that the allocator counts.

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/device_memory.h"
#include "graph/base/input_error.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"

namespace {

namespace graph = acplan::graph;

// Adds up what lies on the device, and compares it with what is counted.
void CheckSums(const graph::CachingAllocator& allocator) {
  int64_t reserved = 0;
  int64_t allocated = 0;
  for (const graph::SegmentUse& use : graph::SegmentsOf(allocator)) {
    Require(use.bytes > 0 && use.allocated_bytes <= use.bytes,
            "no more allocated than there is");
    reserved += use.bytes;
    allocated += use.allocated_bytes;
  }
  Require(reserved == allocator.counts().reserved_bytes, "reserved bytes");
  Require(allocated == allocator.counts().allocated_bytes, "allocated bytes");
  Require(allocator.device_bytes() <= allocator.state().memory.total,
          "no more than the device");
}

void Run(const graph::AllocatorEvents& events,
         const graph::AllocatorConfig& config, int64_t device_bytes) {
  graph::EventRunner runner(events, config, device_bytes);
  graph::BlockId block = graph::kNoBlock;
  for (size_t k = 0; k < events.events.size(); ++k) {
    runner.Run(k, block);
    CheckSums(runner.allocator());
  }
}

}  // namespace

std::string ValidInput(unsigned) { return ""; }

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const size_t end = std::min(text.find('\n'), text.size());
  try {
    const graph::AllocatorConfig config =
        graph::ParseAllocatorConfig(text.substr(0, end), "--allocator");
    const graph::AllocatorEvents events = graph::ParseAllocatorEvents(
        text.substr(std::min(end + 1, text.size())), "events.txt");
    Run(events, config, int64_t{64} << 20);
    Run(events, config, graph::kLargestDevice);
  } catch (const acplan::InputError& error) {
    const std::string_view message = error.what();
    CheckMessage(error, message.starts_with("events.txt, line ")
                            ? "events.txt, line "
                            : "--allocator: ");
  }
  return 0;
}
