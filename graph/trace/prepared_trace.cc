#include "graph/trace/prepared_trace.h"

#include <algorithm>
#include <cstddef>

#include "graph/trace/simulation.h"

namespace acplan::graph {

PreparedTrace::PreparedTrace(const Trace& step)
    : trace(&step), is_written(step.storages.size(), false) {
  Time last_request = 0;
  for (const SavedTensor& saved : step.saved) {
    if (saved.unpacked == kNever) continue;
    last_request = std::max(last_request, saved.unpacked);
  }
  runtime_ms.reserve(step.operators.size());
  first_created.reserve(step.operators.size() + 1);
  created.reserve(step.storages.size());
  for (const OperatorId id : step.operators.ids()) {
    const TraceOperator& op = step.operators[id];
    runtime_ms.push_back(op.runtime_ms);
    first_created.push_back(static_cast<int32_t>(created.size()));
    created.insert(created.end(), op.creates.begin(), op.creates.end());
    for (const OperatorId cast : op.recasts) recasts.emplace_back(id, cast);
    if (op.once) once_operators.push_back(id);
    if (StartOf(id) >= last_request) continue;
    for (const StorageId s : op.mutates) {
      writes.emplace_back(s, id);
      is_written[s] = true;
    }
  }
  first_created.push_back(static_cast<int32_t>(created.size()));
  for (const CallId c : step.calls.ids()) {
    if (step.calls[c].gather_begin != kNever) gathered_calls.push_back(c);
  }
  std::ranges::sort(writes);
  for (const TensorId t : step.tensors.ids()) {
    if (step.tensors[t].op != kNone) made_tensors.push_back(t);
  }
  held_until = HeldByOthers(step);
}

OperatorId PreparedTrace::FirstWrite(StorageId storage, Time begin,
                                     Time end) const {
  const auto write =
      std::ranges::lower_bound(writes, std::pair(storage, OperatorAt(begin)));
  const bool is_write = write != writes.end() && write->first == storage &&
                        StartOf(write->second) < end;
  return is_write ? write->second : kNoOperator;
}

}  // namespace acplan::graph
