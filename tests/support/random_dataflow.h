#pragma once

#include <random>

#include "graph/dataflow/dataflow_graph.h"

namespace acplan::test_support {

// Returns a graph with stages in any order, uses of any stage by any other, and
// inputs more often from recent nodes than from old ones.
graph::DataflowGraph RandomDataflow(std::mt19937& random, int nodes);

}  // namespace acplan::test_support
