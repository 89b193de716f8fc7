#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/offload/movables.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// The least budget of plans that offload, however long the step waits.
//
//   minimise   the simulated peak of a rank
//   over       units of the trace, their policies, and what they move
//   subject to the limit of the host's memory
//
// The search looks at covers of the step by units of one class and their parts, moves
// all that may move, and takes the unit apart that runs again at the peak. It proves
// nothing.

// The covers that searches begin with: by units of the first class, by their parts ...
inline constexpr size_t kCovers = 4;

struct LeastOffload {
  std::vector<graph::CheckpointedModule> units = {};  // nothing offloaded
  int64_t peak_bytes = INT64_MAX;  // of a rank, with what moves
};

struct LeastOffloadQuestion {
  const TraceProblem& problem;
  LinkLimits limits = {};
  std::optional<int> max_units = {};
  std::function<bool()> is_stopped;
};

// Returns the best of all units tried, `known_units` among them.
LeastOffload FindLeastOffload(
    const LeastOffloadQuestion& question,
    const std::vector<graph::CheckpointedModule>& known_units);

}  // namespace acplan::problems
