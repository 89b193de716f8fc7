#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "graph/profile/sac_statistics.h"
#include "graph/trace/trace.h"

namespace acplan::problems {

// What of a call may have to run again, and why (graph/trace/needs.h): the
// operators whose results backward asks for, or that others of them read. An
// operator that something needs is saved or runs again; nothing else does. Calls
// that do the same have equal graphs, since operators, groups and results are
// numbered from the start of the call.
struct NeedGraph {
  struct Operator {
    int place = 0;  // in the call
    int group = 0;  // in the module's OperatorGroups
    double ms = 0;
    // Results, by number: those that it makes or writes to, those that it reads,
    // and those that backward asks for that were saved after it and not after
    // the operator before it in this list.
    std::vector<int> makes = {}, reads = {}, asked = {};
    // It makes no tensor, but something that nothing can stand in for.
    bool is_always_needed = false;

    bool operator==(const Operator&) const = default;
  };
  std::vector<Operator> operators = {};  // the last one first
  int results = 0;

  bool operator==(const NeedGraph&) const = default;
};

// The need graph of a call, with the storage of each of its results.
struct NeedsOfStorages {
  NeedGraph graph;
  std::vector<int32_t> storages = {};
};

// Returns a hash, which is the same for equal graphs.
size_t HashOf(const NeedGraph& graph);

// The saved tensors of a trace in ascending order of their calls. The trace must outlive
// the index.
class SavedByCall {
 public:
  explicit SavedByCall(const graph::Trace& trace);

  // Returns the tensors saved in `call` and in later calls, as indices into Trace::saved,
  // in ascending order of their calls: those of the calls inside `call` come first.
  std::span<const int32_t> From(int32_t call) const;

 private:
  const graph::Trace& trace_;
  std::vector<int32_t> by_call_;  // indices into Trace::saved
};

// `stop`: the operator before which the call stops when it runs again. Views and
// what hands on its argument are left out: they need no more than what needs
// them.
NeedsOfStorages NeedsOfCall(const graph::Trace& trace, const SavedByCall& saved,
                            int32_t call, int32_t stop,
                            const graph::OperatorGroups& groups);

}  // namespace acplan::problems
