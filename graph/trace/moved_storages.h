#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <vector>

#include "graph/trace/frames.h"
#include "graph/trace/offload.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/step_layout.h"

namespace acplan::graph {

// Between two steps: what the trace's own time brings, and then the begins of
// what runs again, one after the other.
struct Moment {
  StepId step = {};    // is before this one
  int64_t rerun = -1;  // ascends with the reruns; -1: before all of them
  auto operator<=>(const Moment&) const = default;
};

// A storage that a frame offloads, and when things happen to it
// (graph/trace/offload.h).
struct MovedStorage {
  FrameId frame = {};
  StorageId storage = {};
  OperatorId op = {};                  // as in OffloadedStorage
  std::optional<Moment> release = {};  // nothing: the frame ends before
  std::optional<Moment> fetch = {};    // nothing: it does not come back
  std::optional<Moment> use = {};      // its call runs again
  StepId frame_end = {};               // the step before which it ends
};
using MovedStorages = IndexedVector<MovedId, MovedStorage>;

// Finds what the frames of a step offload, in the order of frames, and for each first
// the arguments, then operators and results.
MovedStorages FindMovedStorages(const PreparedTrace& prepared,
                                const Frames& frames, const StepLayout& layout);

// Returns the part of `moves`, a list that FindMovedStorages made, of one frame.
IdRange<MovedId> MovedBy(FrameId frame, const MovedStorages& moves);

// Returns the storages that an operator of a frame keeps, each once.
std::vector<StorageId> KeptStorages(const Frame& frame, OperatorId op,
                                    const Trace& trace);

OffloadUse UseOf(const MovedStorages& moves, const PreparedTrace& prepared,
                 const Frames& frames, const StepLayout& layout);

}  // namespace acplan::graph
