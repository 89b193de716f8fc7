#include "problems/check/call_index.h"

namespace acplan::problems {

CallIndex::CallIndex(const graph::Trace& trace)
    : calls_of(trace.modules.size()), saved_in(trace.calls.size()) {
  for (const graph::CallId c : trace.calls.ids()) {
    const graph::TraceCall& call = trace.calls[c];
    if (!call.no_grad) calls_of[call.module].push_back(c);
  }
  for (const graph::SavedId k : trace.saved.ids()) {
    for (graph::CallId c = trace.saved[k].call; c != graph::kNone;
         c = trace.calls[c].parent) {
      saved_in[c].push_back(k);
    }
  }
}

}  // namespace acplan::problems
