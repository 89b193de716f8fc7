#pragma once

#include <random>

#include "graph/schedule/schedule_graph.h"

namespace acplan::test_support {

struct ScheduleShape {
  int nodes = 6;
  bool is_rich =
      true;  // several results, scratch, returns, nodes that run once only
};

// A graph of any schedule whose nodes read near and far ones, with whole times. Valid for
// what schedules are made of.
graph::ScheduleGraph RandomSchedule(std::mt19937& random,
                                    const ScheduleShape& shape);

}  // namespace acplan::test_support
