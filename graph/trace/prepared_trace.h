#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "graph/trace/trace.h"

namespace acplan::graph {

// Holds what the simulation asks of a trace and no plan changes. Refers to the
// trace, which must not change.
struct PreparedTrace {
  explicit PreparedTrace(const Trace& step);

  // Returns the first operator of [begin, end) that writes to a storage in
  // place, or kNever.
  int32_t FirstWrite(int32_t storage, int32_t begin, int32_t end) const;

  // The storages that an operator creates.
  std::span<const int32_t> CreatedBy(int32_t op) const {
    return {created.begin() + first_created[op],
            created.begin() + first_created[op + 1]};
  }

  const Trace* trace;
  std::vector<double> runtime_ms;  // an operator
  // What operators create, one after the other, and where that of each starts.
  std::vector<int32_t> created, first_created;
  std::vector<std::pair<int32_t, int32_t>> recasts;  // operator, cast
  // A storage and an operator that writes to it in place, ascending. Writes
  // after the last request of backward are left out: nothing runs again after
  // it.
  std::vector<std::pair<int32_t, int32_t>> writes;
  std::vector<char> is_written;       // a storage: is among `writes`
  std::vector<int32_t> made_tensors;  // those that are results of operators
  std::vector<int32_t> held;          // a storage: as HeldByOthers says
};

}  // namespace acplan::graph
