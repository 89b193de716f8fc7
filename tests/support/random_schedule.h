#pragma once

#include <random>

#include "graph/schedule/schedule_graph.h"

namespace acplan::test_support {

struct ScheduleShape {
  int nodes = 6;
  bool is_rich =
      true;  // several results, scratch, returns, nodes that run once only
};

// Returns a graph whose operators may run in any schedule, with nodes that read
// near and far ones, and whole times. It is valid for schedules.
graph::ScheduleGraph RandomSchedule(std::mt19937& random,
                                    const ScheduleShape& shape);

}  // namespace acplan::test_support
