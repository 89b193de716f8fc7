#include "problems/check/schedule_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <set>
#include <stdexcept>

namespace acplan::problems {
namespace {

using graph::ScheduleGraph;
using graph::ScheduleNode;

[[noreturn]] void Fail(const std::string& what) {
  throw std::logic_error("the schedule fails its check: " + what);
}

// Checks that first runs are in order, and so are the repeated runs between two
// of them.
void CheckOrder(const ScheduleGraph& graph,
                const std::vector<int32_t>& sequence) {
  int32_t next = 0;
  int32_t last_again = -1;
  for (const int32_t node : sequence) {
    if (node < 0 || node > next || node >= std::ssize(graph.nodes))
      Fail(fmt::format("node {} runs before node {}", node, next));
    if (node == next) {
      ++next;
      last_again = -1;
      continue;
    }
    if (!graph.nodes[node].may_run_again)
      Fail(fmt::format("node {} runs again", node));
    if (node <= last_again)
      Fail(fmt::format("node {} runs again after {}", node, last_again));
    last_again = node;
  }
  if (next != std::ssize(graph.nodes))
    Fail(fmt::format("node {} never runs", next));
}

}  // namespace

ScheduleEffect ComputeScheduleEffect(const ScheduleGraph& graph,
                                     const std::vector<int32_t>& sequence) {
  CheckOrder(graph, sequence);
  ScheduleEffect effect;
  std::set<int32_t> live_values;
  for (size_t v = 0; v < graph.values.size(); ++v)
    if (graph.values[v].is_returned)
      live_values.insert(static_cast<int32_t>(v));
  std::vector<char> is_seen(graph.nodes.size(), 0);
  for (const int32_t node : sequence) {
    if (is_seen[node]) effect.recompute_ms += graph.nodes[node].ms;
    is_seen[node] = 1;
  }
  for (auto step = sequence.rbegin(); step != sequence.rend(); ++step) {
    const ScheduleNode& node = graph.nodes[*step];
    live_values.insert(node.reads.begin(), node.reads.end());
    live_values.insert(node.makes.begin(), node.makes.end());
    int64_t bytes = graph.held_bytes + node.scratch_bytes;
    for (const int32_t value : live_values) bytes += graph.values[value].bytes;
    effect.peak_bytes = std::max(effect.peak_bytes, bytes);
    for (const int32_t value : node.makes) live_values.erase(value);
  }
  if (!live_values.empty()) Fail("a value is read before it exists");
  return effect;
}

void CheckSchedule(const ScheduleGraph& graph,
                   const std::vector<int32_t>& sequence,
                   const ScheduleClaim& claim) {
  const ScheduleEffect effect = ComputeScheduleEffect(graph, sequence);
  if (effect.peak_bytes != claim.peak_bytes)
    Fail(fmt::format("its peak is {} bytes, not {}", effect.peak_bytes,
                     claim.peak_bytes));
  if (effect.peak_bytes > claim.budget_bytes)
    Fail(fmt::format("its peak of {} bytes is over the budget of {}",
                     effect.peak_bytes, claim.budget_bytes));
  if (std::abs(effect.recompute_ms - claim.recompute_ms) >
      1e-9 * std::max(1.0, effect.recompute_ms))
    Fail(fmt::format("it recomputes {} ms, not {}", effect.recompute_ms,
                     claim.recompute_ms));
}

}  // namespace acplan::problems
