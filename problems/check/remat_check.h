#pragma once

#include <cstdint>
#include <vector>

#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"

namespace acplan::problems {

// The effect of keeping some buffers of a joint graph, and of moving some of
// those, computed by running both passes with a count of the remaining uses of
// every buffer. The computation
// shares nothing with the simulation that the search uses except its rules
// (graph/joint/joint_simulation.h).
struct RematEffect {
  int64_t peak_bytes = 0;
  int64_t kept_bytes = 0;
  double recompute_ms = 0;
};

// Throws std::logic_error if a rule forbids the choice, or if something reads a
// buffer while it is in the host's memory.
RematEffect ComputeRematEffect(const graph::JointGraph& graph,
                               const std::vector<char>& is_kept,
                               const std::vector<graph::JointMove>& moves = {});

// Throws std::logic_error if a plan differs from its stated figures or exceeds
// the budget, which is a defect of acplan.
void CheckRemat(const graph::JointGraph& graph, int64_t budget_bytes,
                const graph::JointRun& run);

}  // namespace acplan::problems
