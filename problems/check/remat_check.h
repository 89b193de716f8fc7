#pragma once

#include <cstdint>
#include <vector>

#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"

namespace acplan::problems {

// What keeping some buffers of a joint graph comes to, by running both passes with a count
// of the uses that are left of every buffer. Shares nothing with the simulation that the
// search uses but its rules (graph/joint/joint_simulation.h).
struct RematEffect {
  int64_t peak_bytes = 0;
  int64_t kept_bytes = 0;
  double recompute_ms = 0;
};

RematEffect ComputeRematEffect(const graph::JointGraph& graph,
                               const std::vector<char>& kept);

// Throws std::logic_error where a plan is not what it is said to be, or over the budget:
// a defect of acplan.
void CheckRemat(const graph::JointGraph& graph, int64_t budget_bytes,
                const graph::JointRun& run);

}  // namespace acplan::problems
