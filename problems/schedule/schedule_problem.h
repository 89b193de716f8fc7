#pragma once

#include <cstdint>
#include <vector>

#include "graph/schedule/schedule_graph.h"

namespace acplan::problems {

// The problem of any schedule: which operators of a graph run again, and when,
// so that a step fits a budget and the least time is spent on running again.
// Checkmate (Jain et al., MLSys 2020) and Moccasin (Bartan et al., ICML 2023)
// solve the same problem.
//
// Data: nodes 0 .. n-1 in the order of their first runs, the values that each
//       reads and makes (graph::ScheduleGraph), times t_i, bytes of values m_b, a
//       budget B.
// Variables: for each stage s, which ends with the first run of node s, the set
//       A_s of nodes i < s that run again in it, each once, in the order of the
//       graph:
//         A_0, 0, A_1, 1, ..., A_{n-1}, n-1
// Memory: a value is live while it is made, and from the run that makes it to the
//       last read before it is made again or the step ends; a value that the step
//       returns is live to the end. A run reads the latest copy. So a node has its
//       inputs, its results and its scratch beside it while it runs, and values
//       that nothing reads are gone after its run:
//         M(k) = held + scratch_k + sum of m_b over the values live at run k
// Minimise  sum_s sum_{i in A_s} t_i  subject to  M(k) <= B for every run k.
//
// Any sets A_s make a schedule that can run: the values that a run reads were
// made before, and are kept as long as they are read. Only the memory of the
// sets may be too much.

struct StagedSchedule {
  std::vector<std::vector<int32_t>> repeats;  // by stage: its nodes, ascending

  bool operator==(const StagedSchedule&) const = default;
};

// Returns the schedule that runs every node once.
StagedSchedule WithoutRecomputation(const graph::ScheduleGraph& graph);

// Returns the runs of a schedule, in order.
std::vector<int32_t> SequenceOf(const StagedSchedule& schedule);

double RecomputeMs(const graph::ScheduleGraph& graph,
                   const StagedSchedule& schedule);

struct ScheduleRun {
  std::vector<int32_t> sequence = {};    // nodes
  std::vector<int64_t> live_bytes = {};  // at each run
  int64_t peak_bytes = 0;
  int32_t peak_step = 0;  // the first run with the peak
  double recompute_ms = 0;

  bool operator==(const ScheduleRun&) const = default;
};

// Runs a schedule. `graph` must be valid, with values in the order of their
// makers, as the readers of graph/schedule/ make it, and have at least one
// node.
ScheduleRun RunSchedule(const graph::ScheduleGraph& graph,
                        const StagedSchedule& schedule);

// Returns, by node, the bytes that it needs to run in every schedule: its own
// values and, for the last one, all that the step returns.
std::vector<int64_t> NeededBytes(const graph::ScheduleGraph& graph);

}  // namespace acplan::problems
