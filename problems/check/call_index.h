#pragma once

#include <cstdint>
#include <vector>

#include "graph/trace/trace.h"

namespace acplan::problems {

// An index of the parts of a trace that rules about units look up for each unit.
struct CallIndex {
  explicit CallIndex(const graph::Trace& trace);

  // Indexed by module: its calls with gradients.
  std::vector<std::vector<int32_t>> calls_of;
  // Indexed by call: the tensors that autograd saves in the call and in the
  // calls inside it, as indices into Trace::saved.
  std::vector<std::vector<int32_t>> saved_in;
};

}  // namespace acplan::problems
