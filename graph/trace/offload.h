#pragma once

#include <cstdint>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The storages that a planned step moves to the host's memory and back.
//
// An operator that a unit offloads is saved in all respects but where the
// storages of its kept results are:
// - A storage moves as a whole and once a call, with all kept results of the
//   call that are views of it. The copy to the host is queued when the first
//   operator has ended that offloads it; copies go one after the other.
// - An argument of a unit that is offloaded is a storage that the frame holds instead
//   of a kept result. Its copy is queued when the call begins. A kept result that is a
//   view of it moves with it.
// - The call's frame holds the device's storage until the next frame's forward
//   call has ended, or without one until something runs again for the first
//   time. The step waits there until the copy has ended. Others hold the
//   storage as ever.
// - It comes back into a storage of its own when the next frame's call begins
//   to run again, or the frame's own if that is earlier; and before its own
//   call runs again, the step waits until all of the frame's have come. From
//   then on the new storage is held as a saved one is.
// - Frames here are those outside of all others, in the order of their calls.
// A storage that is offloaded in a frame that ends before it would run again does not
//   come back.
// - The host holds the bytes of a storage from its making until the frame's
//   call begins to run again, or the frame ends.

// A storage on its way.
struct OffloadedStorage {
  CallId call = {};  // whose frame keeps it
  StorageId storage = {};
  OperatorId op = {};  // the first that offloads it; kNone: it is an argument
  int64_t bytes = 0;   // as requested
  // The steps [away_begin, away_end) run without it on the device, which would
  // have it if it were saved. None where the one is not below the other: others
  // hold it, or nobody would.
  StepId away_begin = {};
  StepId away_end = {};
  bool operator==(const OffloadedStorage&) const = default;
};

// An action of the program on a storage, between two steps.
struct OffloadEvent {
  enum class Kind : char {
    kSend,     // the copy to the host is queued
    kRelease,  // waits for that, and lets go of the device's storage
    kFetch,    // the copy to the device is queued, into new storage
    kUse,      // waits for that, and lets go of the host's memory
    kDrop      // lets go of the host's memory, as the frame ends
  };
  Kind kind = Kind::kSend;
  StepId step = {};  // happens before this one
  MovedId storage = {};
  bool operator==(const OffloadEvent&) const = default;
};

struct OffloadUse {
  // In the order in which they go.
  IndexedVector<MovedId, OffloadedStorage> storages;
  std::vector<OffloadEvent> events;  // in the order of the program
  int64_t sent_bytes = 0;
  // The most at any time, counted in the order of the program: what is let go
  // of is no longer there when more is made.
  int64_t host_peak_bytes = 0;

  bool operator==(const OffloadUse&) const = default;
};

}  // namespace acplan::graph
