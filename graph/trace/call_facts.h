#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/indexed_vector.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The calls of a step as the forest that they are.
struct CallForest {
  IndexedVector<ModuleId, std::vector<CallId>> by_module;
  std::vector<CallId> post_order;
  // Is in no other call of its module.
  IndexedVector<CallId, Flag> is_outermost;
  IndexedVector<CallId, CallId> subtree_end;  // after the last call inside it
};
CallForest MakeCallForest(const Trace& trace);

// The saves of autograd in each call, those in calls inside it included.
struct CallSaves {
  IndexedVector<CallId, Time> first_request;   // backward first asks for some
  IndexedVector<CallId, Time> last_save;       // the last of it was saved
  IndexedVector<CallId, Flag> is_asked_twice;  // backward asks twice for some
  IndexedVector<CallId, Flag> is_recast;  // autocast would cast a weight again
  IndexedVector<StorageId, SavedId> first_by_storage;  // of its saved tensors
};
CallSaves FindCallSaves(const Trace& trace);

// For a storage that operators before the optimizer step write to in place:
// which ones do, and which of the forward pass read it, views apart. Both
// ascend.
struct InPlaceAccesses {
  std::vector<OperatorId> writers;
  std::vector<OperatorId> readers;
};
using InPlaceWrites = std::unordered_map<StorageId, InPlaceAccesses>;
InPlaceWrites FindInPlaceWrites(const Trace& trace);

// Returns whether the call makes nothing of a storage from outside of it but the
// storage itself, in place, such as a counter: what it holds when the call runs
// again is then of no account.
bool OnlyUpdates(const Trace& trace, const TraceCall& call, StorageId storage);

// Returns the first operator after `op` and before `rerun_time` that writes to
// something that `op` reads, that was there before `call`, and that the call does
// not only update; kNoOperator if there is none. If there is one, `op` reads something
// else when the call runs again at that time.
OperatorId FirstStaleWrite(const Trace& trace, const InPlaceWrites& writes,
                           const TraceCall& call, OperatorId op,
                           Time rerun_time);

}  // namespace acplan::graph
