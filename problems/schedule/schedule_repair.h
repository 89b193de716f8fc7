#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "graph/schedule/schedule_graph.h"
#include "problems/schedule/schedule_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// Finds schedules that keep a budget, without a proof: from a schedule that
// does not, by dropping values where memory is short and running their makers
// again later; and better ones from a schedule that does, by taking back
// repeated runs around some stages and repairing the result.
class ScheduleRepair {
 public:
  // Refers to the graph.
  ScheduleRepair(const graph::ScheduleGraph& graph, int64_t budget_bytes,
                 int seed);

  // Returns a schedule within the budget, near to this one; nothing if none was
  // found before the clock stopped.
  std::optional<StagedSchedule> Repair(StagedSchedule schedule,
                                       const solver::LimitClock& clock);

  // Drops the repeated runs that the budget does not need, dearest first.
  void Prune(StagedSchedule& schedule);

  // Tries once to find a schedule that costs less than this one, which keeps
  // the budget. Returns whether it found one. The schedule may also change to
  // another one that costs as much.
  bool Improve(StagedSchedule& schedule, const solver::LimitClock& clock);

 private:
  class Search;

  const graph::ScheduleGraph& graph_;
  int64_t budget_;
  std::mt19937 random_;
};

}  // namespace acplan::problems
