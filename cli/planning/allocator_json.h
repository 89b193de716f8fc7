#pragma once

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/planning/allocator_flags.h"
#include "graph/allocator/allocator_events.h"
#include "graph/allocator/allocator_replay.h"
#include "graph/allocator/caching_allocator.h"
#include "graph/allocator/least_device.h"

// The JSON of a run on PyTorch's allocator, whether its events come from a file, from a
// snapshot or from steps (docs/file_formats.md).
namespace acplan::cli {

// Returns the fields that describe where an event stands in its run.
using EventPlace = std::function<nlohmann::ordered_json(int64_t event)>;

// Returns the allocator, its device, and what the run takes of it.
nlohmann::ordered_json AllocatorJson(
    const AllocatorQuestion& question, const graph::AllocatorCounts& counts,
    const std::optional<graph::LeastDevice>& least);

nlohmann::ordered_json ReclaimsJson(const std::vector<graph::Reclaim>& reclaims,
                                    const EventPlace& place_of);

// Returns null without a failure.
nlohmann::ordered_json FailureJson(
    const std::optional<graph::ReplayFailure>& failure,
    const EventPlace& place_of);

nlohmann::ordered_json SegmentsJson(
    const std::vector<graph::SegmentUse>& segments);

// A hole, and the lines of Python that made the blocks beside it.
struct HoleBesideLines {
  int64_t bytes = 0;
  std::vector<std::string> lines;
};

// The bytes of all holes beside the blocks of a line.
struct LineHoles {
  std::string line;
  int64_t bytes = 0;
};

// Returns the sums by line, the most bytes first. A hole between blocks of one line counts
// once.
std::vector<LineHoles> HolesByLine(const std::vector<HoleBesideLines>& holes);

nlohmann::ordered_json BesideHolesJson(const std::vector<LineHoles>& sums);

}  // namespace acplan::cli
