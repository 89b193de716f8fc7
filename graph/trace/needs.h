#pragma once

#include <cstdint>
#include <vector>

#include "graph/base/flag.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Finds the policies of units that run nothing again which nobody needs. Refers
// to the trace, which must not change.
class NeedDrivenPolicies {
 public:
  explicit NeedDrivenPolicies(const Trace& trace);
  explicit NeedDrivenPolicies(Trace&&) = delete;

  // Returns the policy of a unit that saves no more operators than `saves` says,
  // one entry an operator of each call of the module with gradients, and runs
  // again as few of the others as can be: an operator runs again if something
  // that it makes is needed and not kept, that is read by one that runs again,
  // or asked for by backward; so does one that returns no tensor. All others are
  // skipped, also saved ones that make nothing needed, unless they write to what
  // is from outside of the unit. Saved operators keep only the results that are
  // needed. A result that one call of the module needs counts as needed in all of
  // its calls. A saved view does not spare what it is a view of. Units inside of
  // this one are not known here, but what backward asks for within their calls is.
  //
  // Time is linear in the operators of the calls and, a byte each, in the
  // storages of the trace. Throws InputError, naming the
  // module, where `saves` has not the length of each of its calls.
  CheckpointedModule PolicyFor(ModuleId module,
                               const std::vector<Flag>& saves) const;

 private:
  // The storages that are needed at the end of a call's recomputation.
  struct Call {
    const TraceCall* call = nullptr;
    Time stop = 0;  // the start of the operator before which it stops
    std::vector<StorageId> storages = {};
  };
  class Walk;

  Call NeedsOf(CallId call, CallId subtree_end) const;

  const Trace* trace_;
  IndexedVector<ModuleId, std::vector<Call>> calls_of_;
};

}  // namespace acplan::graph
