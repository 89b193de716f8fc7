#pragma once

#include <cstdint>

#include "graph/schedule/schedule_graph.h"

namespace acplan::problems {

// The rules for runs after the first. The oracle finds the best of all
// schedules by a shortest path over all states of a step: the number of nodes
// that have run, the node that ran last, and the values in memory. Any value
// may be dropped at any time. For graphs of few values.
enum class AgainRuns {
  kInOrder,  // between two first runs each node once, in the order of the graph
  kAny,      // any number of times, in any order
};

// Returns the least time spent on running again within a budget; infinity if
// nothing fits.
double LeastRecomputation(const graph::ScheduleGraph& graph, int64_t budget,
                          AgainRuns rule);

}  // namespace acplan::problems
