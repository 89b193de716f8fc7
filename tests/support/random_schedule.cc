#include "tests/support/random_schedule.h"

#include <cstdint>
#include <set>
#include <string>

namespace acplan::test_support {

using graph::ScheduleGraph;
using graph::ScheduleNode;

ScheduleGraph RandomSchedule(std::mt19937& random, const ScheduleShape& shape) {
  const auto below = [&](int n) {
    return static_cast<int>(random() % static_cast<unsigned>(n));
  };
  ScheduleGraph graph{.name = "random",
                      .held_bytes = shape.is_rich ? below(3) : 0};
  for (int n = 0; n < shape.nodes; ++n) {
    ScheduleNode node{.name = "n" + std::to_string(n),
                      .ms = static_cast<double>(below(6))};
    std::set<int32_t> reads;
    const auto values = static_cast<int>(graph.values.size());
    for (int r = 0; values > 0 && r < 1 + below(3); ++r)
      reads.insert(below(2) == 0 ? below(values) : values - 1);
    node.reads.assign(reads.begin(), reads.end());
    const int makes = shape.is_rich && below(5) == 0 ? 2 : 1;
    for (int m = 0; m < makes; ++m) {
      node.makes.push_back(static_cast<int32_t>(graph.values.size()));
      graph.values.push_back({.name = "v" + std::to_string(graph.values.size()),
                              .bytes = 2 * (1 + below(8)),
                              .maker = n,
                              .is_returned = shape.is_rich && below(5) == 0});
    }
    node.may_run_again = !shape.is_rich || below(8) != 0;
    node.scratch_bytes = shape.is_rich && below(6) == 0 ? 2 * below(5) : 0;
    graph.nodes.push_back(node);
  }
  return graph;
}

}  // namespace acplan::test_support
