#include "problems/check/call_index.h"

namespace acplan::problems {

CallIndex::CallIndex(const graph::Trace& trace)
    : calls_of(trace.modules.size()), saved_in(trace.calls.size()) {
  for (int32_t c = 0; c < std::ssize(trace.calls); ++c) {
    const graph::TraceCall& call = trace.calls[c];
    if (!call.no_grad) calls_of[call.module].push_back(c);
  }
  for (int32_t k = 0; k < std::ssize(trace.saved); ++k) {
    for (int32_t c = trace.saved[k].call; c >= 0; c = trace.calls[c].parent) {
      saved_in[c].push_back(k);
    }
  }
}

}  // namespace acplan::problems
