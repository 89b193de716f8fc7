#pragma once

#include <cstdint>
#include <vector>

#include "graph/base/flag.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// A call inside of a unit whose module has parameters of its own to gather
// (TraceCall::gather_begin) has them gathered when the unit runs again, and not again
// later. So under some plans a buffer of the gathering is freed earlier than in the
// trace, and what it fills is there earlier.

// Operators [begin, end) of the trace that gather parameters.
struct Gather {
  // Returns by how many bytes gathering early adds to what HeldUnderEveryPlan counts.
  int64_t ExtraBytes() const {
    return filled_bytes - (TakesPlace() ? buffer_bytes : 0);
  }

  // Returns whether what is filled is no smaller than the buffers.
  bool TakesPlace() const { return filled_bytes >= buffer_bytes; }

  CallId call = {};
  Time begin = 0;
  Time end = 0;
  int64_t filled_bytes = 0;  // of what is made in it
  int64_t buffer_bytes = 0;  // of older storages that are freed in it

  bool operator==(const Gather&) const = default;
};

// Returns all of them in the order in which they begin.
std::vector<Gather> GathersOf(const Trace& trace);

// Returns the same as HeldByOthers, but for a buffer that gathering frees until when it
// or what it fills is live under every plan.
IndexedVector<StorageId, Time> HeldUnderEveryPlan(const Trace& trace);

// Returns those of `gathers` that the call of a unit runs earlier than in the trace when
// it runs again, at `request`, up to the operator that starts at `stop`.
std::vector<Gather> EarlyGathers(const Trace& trace,
                                 const std::vector<Gather>& gathers,
                                 CallId unit, Time request, Time stop);

// Returns for each module whether operators run once in its calls: a module within it is
// sharded by itself.
IndexedVector<ModuleId, Flag> HoldSharded(const Trace& trace);

}  // namespace acplan::graph
