#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "graph/schedule/schedule_graph.h"
#include "problems/schedule/schedule_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// Schedules that keep a budget, without a proof: from one that does not, by dropping
// values where memory is short and running what makes them again later; and better ones
// from one that does, by taking back what runs again around some stages and repairing.
class ScheduleRepair {
 public:
  // Refers to the graph.
  ScheduleRepair(const graph::ScheduleGraph& graph, int64_t budget_bytes,
                 int seed);

  // A schedule within the budget, near to this one; nothing where none was found before
  // the clock stopped.
  std::optional<StagedSchedule> Repair(StagedSchedule schedule,
                                       const solver::LimitClock& clock);

  // Drops what runs again and need not, the dearest first.
  void Prune(StagedSchedule& schedule);

  // One try at a schedule that costs less than this one, which keeps the budget; returns
  // whether it does. It may also become another one that costs as much.
  bool Improve(StagedSchedule& schedule, const solver::LimitClock& clock);

 private:
  class Search;

  const graph::ScheduleGraph& graph_;
  int64_t budget_;
  std::mt19937 random_;
};

}  // namespace acplan::problems
