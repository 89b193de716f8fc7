#pragma once

#include <cstdint>
#include <vector>

#include "graph/schedule/schedule_graph.h"

namespace acplan::problems {

// The effect of a sequence of runs, computed from the graph alone: by a walk
// from the end of the sequence to its beginning with the set of values that are
// still read. The computation shares nothing with the simulation that the
// search uses except its rules (problems/schedule/schedule_problem.h).
struct ScheduleEffect {
  int64_t peak_bytes = 0;
  double recompute_ms = 0;
};

// Computes the effect of a sequence. Throws std::logic_error if the sequence is
// no schedule: a node never runs, has its first run out of order, runs again
// although it may not, or runs twice or out of order between two first runs.
ScheduleEffect ComputeScheduleEffect(const graph::ScheduleGraph& graph,
                                     const std::vector<int32_t>& sequence);

// The stated figures of a schedule.
struct ScheduleClaim {
  int64_t budget_bytes = 0;
  int64_t peak_bytes = 0;
  double recompute_ms = 0;
};

// Throws std::logic_error if a schedule differs from its stated figures or
// exceeds the budget, which is a defect of acplan.
void CheckSchedule(const graph::ScheduleGraph& graph,
                   const std::vector<int32_t>& sequence,
                   const ScheduleClaim& claim);

}  // namespace acplan::problems
