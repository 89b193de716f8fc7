#include "problems/schedule/schedule_meter.h"

#include <limits>

namespace acplan::problems {

using graph::ScheduleGraph;
using graph::ScheduleNode;

ScheduleMeter::ScheduleMeter(const ScheduleGraph& graph, int64_t budget_bytes)
    : graph_(graph), budget_(budget_bytes), lives_(graph.values.size()) {}

double ScheduleMeter::Excess(const StagedSchedule& schedule) {
  change_.clear();
  last_.clear();
  for (int32_t s = 0; s < std::ssize(schedule.repeats); ++s) {
    for (const int32_t node : schedule.repeats[s]) Run(node);
    Run(s);
  }
  const auto steps = static_cast<int32_t>(change_.size());
  for (int32_t value = 0; value < std::ssize(lives_); ++value) {
    if (graph_.values[value].is_returned) lives_[value].end = steps - 1;
    Count(value);
    lives_[value] = {};
  }
  double excess = 0;
  int64_t live = graph_.held_bytes;
  int64_t most = std::numeric_limits<int64_t>::min();
  for (int32_t step = 0; step < steps; ++step) {
    live += change_[step];
    const int64_t step_bytes = live + last_[step];
    if (step_bytes > budget_)
      excess += static_cast<double>(step_bytes - budget_);
    if (step_bytes > most) {
      most = step_bytes;
      worst_step_ = step;
    }
  }
  return excess;
}

void ScheduleMeter::Run(int32_t node) {
  const ScheduleNode& run = graph_.nodes[node];
  const auto step = static_cast<int32_t>(change_.size());
  change_.push_back(0);
  last_.push_back(run.scratch_bytes);
  for (const int32_t value : run.reads) lives_[value].end = step;
  for (const int32_t value : run.makes) {
    Count(value);
    lives_[value] = {.begin = step, .end = step};
  }
}

void ScheduleMeter::Count(int32_t value) {
  const Life& life = lives_[value];
  if (life.begin < 0) return;
  change_[life.begin] += graph_.values[value].bytes;
  change_[life.end] -= graph_.values[value].bytes;
  last_[life.end] += graph_.values[value].bytes;
}

}  // namespace acplan::problems
