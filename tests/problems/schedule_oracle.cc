#include "tests/problems/schedule_oracle.h"

#include <limits>
#include <map>
#include <queue>
#include <tuple>
#include <vector>

namespace acplan::problems {
namespace {

using graph::ScheduleGraph;
using graph::ScheduleNode;

struct State {
  int32_t done_count = 0;  // nodes that ran
  int32_t last = -1;       // which ran again last since then
  uint32_t memory = 0;

  auto operator<=>(const State&) const = default;
};

uint32_t BitsOf(const std::vector<int32_t>& values) {
  uint32_t bits = 0;
  for (const int32_t value : values) bits |= 1U << value;
  return bits;
}

}  // namespace

double LeastRecomputation(const ScheduleGraph& graph, int64_t budget,
                          AgainRuns rule) {
  const auto nodes = static_cast<int32_t>(graph.nodes.size());
  uint32_t returned = 0;
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].is_returned) returned |= 1U << v;
  const auto bytes = [&](uint32_t memory) {
    int64_t sum = graph.held_bytes;
    for (size_t v = 0; v < graph.values.size(); ++v)
      if (memory >> v & 1U) sum += graph.values[v].bytes;
    return sum;
  };
  std::map<State, double> least;
  using Entry = std::pair<double, State>;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto reach = [&](const State& state, double ms) {
    const auto [entry, is_new] = least.emplace(state, ms);
    if (!is_new && entry->second <= ms) return;
    entry->second = ms;
    queue.emplace(ms, state);
  };
  reach({}, 0);
  while (!queue.empty()) {
    const auto [ms, state] = queue.top();
    queue.pop();
    if (ms > least.at(state)) continue;
    if (state.done_count == nodes && (state.memory & returned) == returned)
      return ms;
    for (size_t v = 0; v < graph.values.size(); ++v)
      if (state.memory >> v & 1U)
        reach({state.done_count, state.last, state.memory & ~(1U << v)}, ms);
    for (int32_t n = 0; n <= std::min(state.done_count, nodes - 1); ++n) {
      const ScheduleNode& node = graph.nodes[n];
      const uint32_t reads = BitsOf(node.reads);
      if ((state.memory & reads) != reads) continue;
      const uint32_t memory = state.memory | BitsOf(node.makes);
      if (bytes(memory) + node.scratch_bytes > budget) continue;
      if (n == state.done_count) {
        reach({n + 1, -1, memory}, ms);
      } else if (node.may_run_again && state.done_count < nodes &&
                 (rule == AgainRuns::kAny || n > state.last)) {
        reach({state.done_count, rule == AgainRuns::kAny ? -1 : n, memory},
              ms + node.ms);
      }
    }
  }
  return std::numeric_limits<double>::infinity();
}

}  // namespace acplan::problems
