#include "problems/schedule/schedule_problem.h"

#include <algorithm>
#include <cstddef>
#include <set>

namespace acplan::problems {

using graph::ScheduleGraph;
using graph::ScheduleNode;
using graph::ScheduleValue;

StagedSchedule WithoutRecomputation(const ScheduleGraph& graph) {
  StagedSchedule schedule;
  schedule.repeats.resize(graph.nodes.size());
  return schedule;
}

std::vector<int32_t> SequenceOf(const StagedSchedule& schedule) {
  std::vector<int32_t> sequence;
  for (size_t s = 0; s < schedule.repeats.size(); ++s) {
    sequence.insert(sequence.end(), schedule.repeats[s].begin(),
                    schedule.repeats[s].end());
    sequence.push_back(static_cast<int32_t>(s));
  }
  return sequence;
}

double RecomputeMs(const ScheduleGraph& graph, const StagedSchedule& schedule) {
  double ms = 0;
  for (const std::vector<int32_t>& stage : schedule.repeats)
    for (const int32_t node : stage) ms += graph.nodes[node].ms;
  return ms;
}

ScheduleRun RunSchedule(const ScheduleGraph& graph,
                        const StagedSchedule& schedule) {
  ScheduleRun run{.sequence = SequenceOf(schedule),
                  .recompute_ms = RecomputeMs(graph, schedule)};
  struct Life {
    size_t begin = 0;
    size_t end = 0;
    bool is_begun = false;
  };
  const size_t steps = run.sequence.size();
  std::vector<int64_t> change(steps + 1, 0);
  std::vector<Life> lives(graph.values.size());
  const auto count = [&](size_t value) {
    if (!lives[value].is_begun) return;
    change[lives[value].begin] += graph.values[value].bytes;
    change[lives[value].end + 1] -= graph.values[value].bytes;
  };
  for (size_t step = 0; step < steps; ++step) {
    const ScheduleNode& node = graph.nodes[run.sequence[step]];
    for (const int32_t value : node.reads) lives[value].end = step;
    for (const int32_t value : node.makes) {
      count(static_cast<size_t>(value));
      lives[value] = {.begin = step, .end = step, .is_begun = true};
    }
    change[step] += node.scratch_bytes;
    change[step + 1] -= node.scratch_bytes;
  }
  for (size_t value = 0; value < lives.size(); ++value) {
    if (graph.values[value].is_returned) lives[value].end = steps - 1;
    count(value);
  }
  int64_t live = graph.held_bytes;
  for (size_t step = 0; step < steps; ++step) {
    live += change[step];
    run.live_bytes.push_back(live);
    if (live > run.peak_bytes) {
      run.peak_bytes = live;
      run.peak_step = static_cast<int32_t>(step);
    }
  }
  return run;
}

std::vector<int64_t> NeededBytes(const ScheduleGraph& graph) {
  std::vector<int64_t> needed_bytes;
  for (const ScheduleNode& node : graph.nodes) {
    std::set<int32_t> values(node.reads.begin(), node.reads.end());
    values.insert(node.makes.begin(), node.makes.end());
    if (needed_bytes.size() + 1 == graph.nodes.size()) {
      for (size_t v = 0; v < graph.values.size(); ++v)
        if (graph.values[v].is_returned) values.insert(static_cast<int32_t>(v));
    }
    int64_t bytes = graph.held_bytes + node.scratch_bytes;
    for (const int32_t value : values) bytes += graph.values[value].bytes;
    needed_bytes.push_back(bytes);
  }
  return needed_bytes;
}

}  // namespace acplan::problems
