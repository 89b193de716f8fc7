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

// From a graph whose operators may run in any schedule, and a budget, to a
// checked answer: the file `acplan.schedule`, version 1, which
// docs/file_formats.md describes.

struct SchedulePlan {
  int64_t budget_bytes = 0;
  ScheduleAnswer answer = {};
  std::optional<ScheduleRun> run = {};  // of the answer's schedule
  int64_t baseline_peak_bytes = 0;      // running every node once
  double step_ms = 0;                   // the time of running every node once
  double seconds = 0;
};

// Returns the peak of running every node once, in order.
int64_t ScheduleBaseline(const graph::ScheduleGraph& graph);

// Returns the best schedule within a budget. Throws std::logic_error if it
// fails its check (check/schedule_check.h).
SchedulePlan PlanSchedule(const graph::ScheduleGraph& graph,
                          const ScheduleQuestion& question);

// Returns the best schedules at `points` budgets, evenly spaced and ascending,
// from the most bytes that one node needs, which every schedule needs too, to
// the peak of running every node once. Each search begins with the previous
// schedule, so that a larger budget never has a worse one. Each budget may take
// an even share of the remaining time.
std::vector<SchedulePlan> ScheduleFrontier(const graph::ScheduleGraph& graph,
                                           int points,
                                           const solver::SearchLimits& limits);

// Returns the file `acplan.schedule`; if `has_memory`, with the bytes at every
// run.
std::string ScheduleToJson(const SchedulePlan& plan,
                           const graph::ScheduleGraph& graph, bool has_memory);

// Returns the file `acplan.schedule_frontier`, version 1: for each point the
// fields of ScheduleToJson except the runs.
std::string ScheduleFrontierToJson(const std::vector<SchedulePlan>& plans,
                                   const graph::ScheduleGraph& graph);

}  // namespace acplan::problems
