#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/planning/allocator_flags.h"
#include "cli/planning/allocator_json.h"
#include "cli/terminal/terminal.h"
#include "graph/allocator/allocator_events.h"
#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/caching_allocator.h"
#include "graph/allocator/least_device.h"

// Texts on a run on PyTorch's allocator, whether its events come from a file or from
// a step.
namespace acplan::cli {

// Returns "PyTorch 2.15, native segments, a device of 24.0 GiB".
std::string AllocatorText(const AllocatorQuestion& question);
std::string TorchVersionText(const graph::AllocatorConfig& config);  // "2.15"

// Returns the kind of an event as timelines have it.
std::string_view EventKindText(graph::AllocatorEvent::Kind kind);

// Returns "segment,offset" of a block, or "," without one, for CSV.
std::string PlaceFields(const graph::CachingAllocator& allocator,
                        graph::BlockId block);

// Returns a table with the segments of each stream and pool together.
std::string SegmentsTable(const std::vector<graph::SegmentUse>& segments,
                          const Terminal& terminal);

// Returns the lines on the device, if it was named, on what is allocated and reserved at
// most, and on the least device, if it is asked for.
std::string PeaksText(const AllocatorQuestion& question,
                      const graph::AllocatorCounts& counts,
                      const std::optional<graph::LeastDevice>& least);

// Returns the title of the segments at the failure, or where most is reserved.
std::string PeakTitle(bool is_failure, const std::string& place);

// Returns the lines of Python beside so many bytes of holes, the largest sums alone; "" without
// holes.
std::string HolesText(int64_t bytes, const std::vector<LineHoles>& lines);

// Returns the line on retries and what the cache gave back; "" where there was
// enough memory.
std::string ReclaimsText(const graph::Replay& replay);

// Returns "out of memory: 5.00 MiB on stream 0 at PLACE, with ... free".
std::string FailureText(const graph::ReplayFailure& failure,
                        const std::string& place, const Terminal& terminal);

}  // namespace acplan::cli
