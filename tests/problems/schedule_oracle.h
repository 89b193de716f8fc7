#pragma once

#include <cstdint>

#include "graph/schedule/schedule_graph.h"

namespace acplan::problems {

// What is least of all schedules, by a shortest path over all states of a step: how many
// nodes have run, which one ran last, and which values are in memory. Any value may be
// dropped at any time. For graphs of few values.
enum class AgainRuns {
  kInOrder,  // between two first runs each node once, in the order of the graph
  kAny,      // as often as one likes, in any order
};

// The least time spent again within a budget; infinity where nothing fits.
double LeastRecomputation(const graph::ScheduleGraph& graph, int64_t budget,
                          AgainRuns again);

}  // namespace acplan::problems
