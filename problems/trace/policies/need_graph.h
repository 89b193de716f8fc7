#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/profile/sac_statistics.h"
#include "graph/trace/trace.h"

namespace acplan::problems {

// Ids of problems work as those of traces do.
using graph::IndexOf;
using graph::Next;
using graph::Previous;

enum class ResultId : int32_t {};  // of a need graph's results

// The operators of a call that may have to run again, and why (graph/trace/needs.h):
// those whose results backward asks for, or that others of them read. An operator that
// something needs is saved or runs again; nothing else does. Calls that do the same
// have equal graphs, since operators, groups and results are numbered from the start of
// the call.
struct NeedGraph {
  struct Operator {
    int place = 0;              // in the call
    graph::GroupId group = {};  // in the module's OperatorGroups
    double ms = 0;
    // Results: those that it makes or writes to, those that it reads, and those that
    // backward asks for that were saved after it and not after the operator before it
    // in this list.
    std::vector<ResultId> makes = {}, reads = {}, requests = {};
    // It makes no tensor, but something that nothing can stand in for.
    bool is_always_needed = false;

    bool operator==(const Operator&) const = default;
  };
  std::vector<Operator> operators = {};  // the last one first
  size_t results = 0;                    // the number of them

  bool operator==(const NeedGraph&) const = default;
};

// The need graph of a call, with the storage of each of its results.
struct NeedsOfStorages {
  NeedGraph graph;
  graph::IndexedVector<ResultId, graph::StorageId> storages = {};
};

// Returns a hash, which is the same for equal graphs.
size_t HashOf(const NeedGraph& graph);

// The saved tensors of a trace in ascending order of their calls. The trace must outlive
// the index.
class SavedByCall {
 public:
  explicit SavedByCall(const graph::Trace& trace);

  // Returns the tensors saved in `call` and in later calls, in ascending order of their
  // calls: those of the calls inside `call` come first.
  std::span<const graph::SavedId> From(graph::CallId call) const;

 private:
  const graph::Trace& trace_;
  std::vector<graph::SavedId> by_call_;
};

// Returns what a call needs. `stop`: the start of the operator before which it stops
// when it runs again. Views and operators that hand on their argument are left out:
// they need no more than what needs them.
NeedsOfStorages NeedsOfCall(const graph::Trace& trace, const SavedByCall& saved,
                            graph::CallId call, graph::Time stop,
                            const graph::OperatorGroups& groups);

}  // namespace acplan::problems
