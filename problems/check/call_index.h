#pragma once

#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/trace/trace.h"

namespace acplan::problems {

// An index of the parts of a trace that rules about units look up for each unit.
struct CallIndex {
  explicit CallIndex(const graph::Trace& trace);

  // The calls of a module with gradients.
  graph::IndexedVector<graph::ModuleId, std::vector<graph::CallId>> calls_of;
  // The tensors that autograd saves in a call and in the calls inside it.
  graph::IndexedVector<graph::CallId, std::vector<graph::SavedId>> saved_in;
};

}  // namespace acplan::problems
