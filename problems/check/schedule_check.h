#pragma once

#include <cstdint>
#include <vector>

#include "graph/schedule/schedule_graph.h"

namespace acplan::problems {

// What a sequence of runs comes to, from the graph alone: by a walk from its end to its
// begin with the set of values that are still read. Shares nothing with the simulation that
// the search uses but its rules (problems/schedule/schedule_problem.h).
struct ScheduleEffect {
  int64_t peak_bytes = 0;
  double recompute_ms = 0;
};

// Throws std::logic_error where the sequence is no schedule: a node never runs, runs first
// out of order, runs again though it may not, or runs twice or out of order between two
// first runs.
ScheduleEffect ComputeScheduleEffect(const graph::ScheduleGraph& graph,
                                     const std::vector<int32_t>& sequence);

// What a schedule is said to be.
struct ScheduleClaim {
  int64_t budget_bytes = 0;
  int64_t peak_bytes = 0;
  double recompute_ms = 0;
};

// Throws std::logic_error where a schedule is not what it is said to be, or over the
// budget: a defect of acplan.
void CheckSchedule(const graph::ScheduleGraph& graph,
                   const std::vector<int32_t>& sequence,
                   const ScheduleClaim& claim);

}  // namespace acplan::problems
