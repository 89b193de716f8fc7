#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"
#include "problems/model/link_limits.h"

namespace acplan::problems {

// A run and the time that it waits for the link.
struct MovedRun {
  graph::JointRun run;
  double stall_ms = 0;

  double CostMs() const { return run.recompute_ms + stall_ms; }
};

struct MoveQuestion {
  const graph::JointGraph& graph;
  LinkLimits link;
  int64_t budget_bytes = 0;
};

// Returns a run with moves that bring it within the budget, by a search that looks for
// short stalls; nothing if it finds none. `wishes`: moves to begin with, by buffer.
std::optional<MovedRun> FitByMoves(const MoveQuestion& question,
                                   const graph::JointRun& run,
                                   const std::vector<int32_t>& wishes = {});

// Returns the run with the least peak that moves give it: all that may move does, as early
// and as long as possible, within the host's memory.
graph::JointRun MoveAll(const MoveQuestion& question,
                        const graph::JointRun& run);

}  // namespace acplan::problems
