#pragma once

#include <cstdint>
#include <vector>

#include "graph/schedule/schedule_graph.h"
#include "problems/schedule/schedule_problem.h"

namespace acplan::problems {

// How far schedules are over a budget: RunSchedule without its lists, for who tries many.
class ScheduleMeter {
 public:
  // Refers to the graph.
  ScheduleMeter(const graph::ScheduleGraph& graph, int64_t budget_bytes);

  // Bytes over the budget, summed over runs; a double, since it may be more than an integer
  // holds.
  double Excess(const StagedSchedule& schedule);

  // Of the last call: the first run with the most bytes.
  int32_t WorstStep() const { return worst_step_; }

 private:
  // Of a value's copy: the runs during which it is live.
  struct Life {
    int32_t begin = -1;
    int32_t end = -1;
  };

  void Run(int32_t node);
  void Count(int32_t value);

  const graph::ScheduleGraph& graph_;
  int64_t budget_;
  std::vector<Life> lives_;  // a value
  std::vector<int64_t>
      change_;  // a run: what is live from here on, less what was
  std::vector<int64_t> last_;  // a run: what is live in it for the last time
  int32_t worst_step_ = 0;
};

}  // namespace acplan::problems
