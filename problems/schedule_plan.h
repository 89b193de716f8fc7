#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "graph/schedule/schedule_graph.h"
#include "problems/schedule/schedule_problem.h"
#include "problems/schedule/schedule_search.h"
#include "solver/search.h"

namespace acplan::problems {

// From a graph of any schedule and a budget to a checked answer: the file
// `acplan.schedule`, version 1, which docs/file_formats.md describes.

struct SchedulePlan {
  int64_t budget_bytes = 0;
  ScheduleAnswer answer = {};
  std::optional<ScheduleRun> run = {};  // of the answer's schedule
  int64_t baseline_peak_bytes = 0;      // of every node once
  double step_ms = 0;                   // likewise
  double seconds = 0;
};

// The peak of every node once, in order.
int64_t ScheduleBaseline(const graph::ScheduleGraph& graph);

// The best schedule within a budget. Throws std::logic_error where it fails its check
// (check/schedule_check.h).
SchedulePlan PlanSchedule(const graph::ScheduleGraph& graph,
                          const ScheduleQuestion& question);

// The best schedules at `points` budgets, evenly spaced from the most bytes that one node
// needs, which no schedule is below, to the peak of every node once, ascending; each begins
// with the schedule before it, so that a larger budget never has a worse one. Every budget
// may take an even share of what is left of the time.
std::vector<SchedulePlan> ScheduleFrontier(const graph::ScheduleGraph& graph,
                                           int points,
                                           const solver::SearchLimits& limits);

// `has_memory`: with the bytes at every run.
std::string ScheduleToJson(const SchedulePlan& plan,
                           const graph::ScheduleGraph& graph, bool has_memory);

// The file `acplan.schedule_frontier`, version 1: of each point what ScheduleToJson says
// but for the runs.
std::string ScheduleFrontierToJson(const std::vector<SchedulePlan>& plans,
                                   const graph::ScheduleGraph& graph);

}  // namespace acplan::problems
