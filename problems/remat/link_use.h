#pragma once

#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_moves.h"
#include "graph/joint/joint_simulation.h"
#include "graph/trace/link_time.h"
#include "graph/trace/offload.h"

namespace acplan::problems {

// The copies of a compiled step as events on the link of graph/trace/link_time.h, which
// eager plans use as well.

using StepBegins = graph::IndexedVector<graph::StepId, double>;

// Returns when each step of a run begins without any stall, and in the end when the last
// has ended.
StepBegins BeginsOf(const graph::JointGraph& graph, const graph::JointRun& run);

// Returns the copies of these moves, which are moves of `lives`, each by its buffer. Before
// a step, copies to the host come first, then releases, then copies back, then reads; copies
// back come in the order of their first reads.
graph::OffloadUse LinkUse(const graph::JointGraph& graph,
                          const std::vector<graph::KeptLife>& lives,
                          const std::vector<graph::JointMove>& moves);

// Returns how long the step waits for the link.
double StallMs(const StepBegins& begins, const graph::OffloadUse& use,
               const graph::LinkRates& rates);

// Returns how long a run waits for its moves.
double StallMs(const graph::JointGraph& graph, const graph::JointRun& run,
               const graph::LinkRates& rates);

}  // namespace acplan::problems
