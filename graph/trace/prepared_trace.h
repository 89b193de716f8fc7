#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/indexed_vector.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Holds what the simulation asks of a trace and no plan changes. Refers to the
// trace, which must not change.
struct PreparedTrace {
  explicit PreparedTrace(const Trace& step);

  // Returns the first operator that starts in [begin, end) and writes to a storage in
  // place, or kNoOperator.
  OperatorId FirstWrite(StorageId storage, Time begin, Time end) const;

  // Returns the storages that an operator creates.
  std::span<const StorageId> CreatedBy(OperatorId op) const {
    return {created.begin() + first_created[op],
            created.begin() + first_created[Next(op)]};
  }

  const Trace* trace;
  IndexedVector<OperatorId, double> runtime_ms;
  // The storages that operators create, in their order, and the place of the first
  // of each; the last entry is the number of all.
  std::vector<StorageId> created;
  IndexedVector<OperatorId, int32_t> first_created;
  std::vector<std::pair<OperatorId, OperatorId>> recasts;  // operator, cast
  // A storage and an operator that writes to it in place, ascending. Writes
  // after the last request of backward are left out: nothing runs again after
  // it.
  std::vector<std::pair<StorageId, OperatorId>> writes;
  IndexedVector<StorageId, Flag> is_written;  // is among `writes`
  std::vector<OperatorId> once_operators;     // TraceOperator::once
  std::vector<CallId> gathered_calls;         // those with a gather_begin
  std::vector<TensorId> made_tensors;  // those that are results of operators
  IndexedVector<StorageId, Time> held_until;  // as HeldByOthers says
};

}  // namespace acplan::graph
