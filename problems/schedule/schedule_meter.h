#pragma once

#include <cstdint>
#include <vector>

#include "graph/schedule/schedule_graph.h"
#include "problems/schedule/schedule_problem.h"

namespace acplan::problems {

// Measures by how much schedules exceed a budget: RunSchedule without its
// lists, for callers that try many.
class ScheduleMeter {
 public:
  // Refers to the graph.
  ScheduleMeter(const graph::ScheduleGraph& graph, int64_t budget_bytes);

  // Returns the bytes over the budget, summed over runs; a double, since the
  // sum may exceed the range of an integer.
  double Excess(const StagedSchedule& schedule);

  // Returns the first run with the most bytes in the last call of Excess.
  int32_t WorstStep() const { return worst_step_; }

 private:
  // The runs during which a value's copy is live.
  struct Life {
    int32_t begin = -1;
    int32_t end = -1;
  };

  void Run(int32_t node);
  void Count(int32_t value);

  const graph::ScheduleGraph& graph_;
  int64_t budget_;
  std::vector<Life> lives_;  // by value
  std::vector<int64_t>
      change_;  // by run: the live bytes from here on, less those before
  std::vector<int64_t> last_;  // by run: the bytes that are live last in it
  int32_t worst_step_ = 0;
};

}  // namespace acplan::problems
