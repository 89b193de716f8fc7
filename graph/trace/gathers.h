#pragma once

#include "graph/trace/trace.h"

namespace acplan::graph {

// A call inside of a unit whose module has parameters of its own to gather
// (TraceCall::gather_begin) has them gathered when the unit runs again, and not again
// later. So under some plans a buffer of the gathering is freed earlier than in the
// trace, and what it fills is there earlier.

// As HeldByOthers, but for a buffer that gathering frees until when it or what it fills
// is live under every plan.
IndexedVector<StorageId, Time> HeldUnderEveryPlan(const Trace& trace);

// Returns whether an operator in a call of a module runs once.
bool RunsAnythingOnce(const Trace& trace, ModuleId module);

}  // namespace acplan::graph
