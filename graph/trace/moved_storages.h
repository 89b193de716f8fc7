#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "graph/trace/frames.h"
#include "graph/trace/offload.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/step_layout.h"

namespace acplan::graph {

// Between two steps: what the trace's own time brings, and then the begins of
// what runs again, one after the other.
struct Moment {
  int32_t step = 0;    // is before this one
  int64_t rerun = -1;  // ascends with the reruns; -1: before all of them
  auto operator<=>(const Moment&) const = default;
};

// A storage that a frame offloads, and when things happen to it
// (graph/trace/offload.h).
struct MovedStorage {
  int32_t frame = 0;
  int32_t storage = 0;
  int32_t op = 0;                      // the first that offloads it
  std::optional<Moment> release = {};  // nothing: the frame ends before
  std::optional<Moment> fetch = {};    // nothing: it does not come back
  std::optional<Moment> use = {};      // its call runs again
  int32_t frame_end = 0;               // the step before which it ends
};

// What the frames of a step offload: by frame, operator and result.
std::vector<MovedStorage> FindMovedStorages(const PreparedTrace& prepared,
                                            const Frames& frames,
                                            const StepLayout& layout);

// Those of a frame, in a list made by FindMovedStorages.
std::span<const MovedStorage> MovedBy(int32_t frame,
                                      const std::vector<MovedStorage>& moved);

// The storages that an operator of a frame keeps, each once.
std::vector<int32_t> KeptStorages(const Frame& frame, int32_t op,
                                  const Trace& trace);

OffloadUse UseOf(const std::vector<MovedStorage>& moved,
                 const PreparedTrace& prepared, const Frames& frames,
                 const StepLayout& layout);

}  // namespace acplan::graph
