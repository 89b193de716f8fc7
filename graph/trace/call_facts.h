#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "graph/trace/trace.h"

namespace acplan::graph {

// The calls of a step as the forest that they are.
struct CallForest {
  std::vector<std::vector<int32_t>> by_module;
  std::vector<int32_t> post_order;
  // By call.
  std::vector<char> is_outermost;    // is in no other call of its module
  std::vector<int32_t> subtree_end;  // after the last call inside it
};
CallForest MakeCallForest(const Trace& trace);

// Holds what autograd saves, by call, calls inside it included.
struct CallSaves {
  std::vector<int32_t>
      first_request;                 // when backward first asks for some of it
  std::vector<int32_t> last_save;    // when the last of it was saved
  std::vector<char> is_asked_twice;  // backward asks twice for some of it
  std::vector<char> is_recast;       // autocast would cast a weight again
  std::vector<int32_t> first_by_storage;  // in Trace::saved; -1: not saved
};
CallSaves FindCallSaves(const Trace& trace);

// For a storage that operators before the optimizer step write to in place:
// which ones do, and which of the forward pass read it, views apart. Both
// ascend.
struct InPlaceAccesses {
  std::vector<int32_t> writers;
  std::vector<int32_t> readers;
};
using InPlaceWrites = std::unordered_map<int32_t, InPlaceAccesses>;
InPlaceWrites FindInPlaceWrites(const Trace& trace);

// Returns whether the call makes nothing of a storage from outside of it but the
// storage itself, in place, such as a counter: what it holds when the call runs
// again is then of no account.
bool OnlyUpdates(const Trace& trace, const TraceCall& call, int32_t storage);

// Returns the first operator after `op` and before `rerun_time` that writes to
// something that `op` reads, that was there before `call`, and that the call does
// not only update; kNever if there is none. If there is one, `op` reads something
// else when the call runs again at that time.
int32_t FirstStaleWrite(const Trace& trace, const InPlaceWrites& writes,
                        const TraceCall& call, int32_t op, int32_t rerun_time);

}  // namespace acplan::graph
