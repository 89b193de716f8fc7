#include "graph/trace/prepared_trace.h"

#include <algorithm>
#include <cstddef>

#include "graph/trace/simulation.h"

namespace acplan::graph {

PreparedTrace::PreparedTrace(const Trace& step)
    : trace(&step), is_written(step.storages.size(), 0) {
  int32_t last_request = 0;
  for (const SavedTensor& saved : step.saved) {
    if (saved.unpacked == kNever) continue;
    last_request = std::max(last_request, saved.unpacked);
  }
  runtime_ms.reserve(step.operators.size());
  first_created.reserve(step.operators.size() + 1);
  created.reserve(step.storages.size());
  for (int32_t k = 0; k < std::ssize(step.operators); ++k) {
    const TraceOperator& op = step.operators[k];
    runtime_ms.push_back(op.runtime_ms);
    first_created.push_back(static_cast<int32_t>(created.size()));
    created.insert(created.end(), op.creates.begin(), op.creates.end());
    for (const int32_t cast : op.recasts) recasts.emplace_back(k, cast);
    if (k >= last_request) continue;
    for (const int32_t s : op.mutates) {
      writes.emplace_back(s, k);
      is_written[s] = 1;
    }
  }
  first_created.push_back(static_cast<int32_t>(created.size()));
  std::ranges::sort(writes);
  for (int32_t t = 0; t < std::ssize(step.tensors); ++t) {
    if (step.tensors[t].op >= 0) made_tensors.push_back(t);
  }
  held = HeldByOthers(step);
}

int32_t PreparedTrace::FirstWrite(int32_t storage, int32_t begin,
                                  int32_t end) const {
  const auto found =
      std::ranges::lower_bound(writes, std::pair(storage, begin));
  const bool is_found =
      found != writes.end() && found->first == storage && found->second < end;
  return is_found ? found->second : kNever;
}

}  // namespace acplan::graph
