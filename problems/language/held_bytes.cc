#include "problems/language/held_bytes.h"

#include <algorithm>
#include <cstddef>
#include <tuple>

#include "graph/trace/allocation.h"

namespace acplan::problems {

using graph::LifeId;
using graph::StepId;
using graph::StorageId;
using graph::Time;

namespace {

// A life in times of the trace.
struct Span {
  StorageId storage = {};
  Time begin = 0;
  Time end = 0;
};

// Returns how many of the trace's own operators run before each step, and before the end.
std::vector<Time> OwnBefore(const graph::LivedStep& lived) {
  std::vector<Time> before;
  Time count = 0;
  for (const graph::Simulation::Step& step : lived.steps) {
    before.push_back(count);
    if (step.redone == graph::kNone) ++count;
  }
  before.push_back(count);
  return before;
}

}  // namespace

HeldBytes HeldBytesOf(const graph::Trace& trace,
                      const graph::Simulator& simulator,
                      const std::vector<graph::CheckpointedModule>& units) {
  const graph::LivedStep lived = simulator.Live(units);
  const std::vector<Time> before = OwnBefore(lived);
  const auto last = static_cast<int32_t>(before.size()) - 1;
  std::vector<Span> spans;
  spans.reserve(lived.lives.size());
  for (const graph::Life& life : lived.lives) {
    const int32_t begin = std::min(IndexOf(life.begin), last);
    const int32_t end =
        std::min(std::max(IndexOf(life.end), IndexOf(life.begin) + 1), last);
    if (before[begin] < before[end]) {
      spans.push_back({life.storage, before[begin], before[end]});
    }
  }
  std::ranges::sort(spans, {}, [](const Span& span) {
    return std::tuple(IndexOf(span.storage), span.begin, span.end);
  });
  std::vector<int64_t> change(trace.operators.size() + 1, 0);
  StorageId storage = graph::kNone;
  Time covered = 0;  // what of the storage has been counted ends here
  for (const Span& span : spans) {
    if (span.storage != storage) covered = 0;
    storage = span.storage;
    const Time begin = std::max(span.begin, covered);
    if (begin >= span.end) continue;
    const int64_t bytes = graph::AllocatedBytes(trace.storages[storage].bytes);
    change[begin] += bytes;
    change[span.end] -= bytes;
    covered = span.end;
  }
  HeldBytes bytes_at(trace.operators.size(), 0);
  int64_t sum = 0;
  for (const graph::OperatorId op : trace.operators.ids()) {
    bytes_at[op] = sum += change[static_cast<size_t>(IndexOf(op))];
  }
  return bytes_at;
}

}  // namespace acplan::problems
