#pragma once

#include <cstdint>
#include <optional>

#include "graph/schedule/schedule_graph.h"
#include "problems/schedule/schedule_problem.h"
#include "solver/search.h"

namespace acplan::problems {

struct ScheduleAnswer {
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  std::optional<StagedSchedule> schedule = {};
  double recompute_ms = 0;  // of the schedule
  // No schedule recomputes less; 0 if there is none.
  double bound_ms = 0;
  // If nothing fits: no schedule has a lower peak; 0 if that is not known.
  int64_t least_bytes = 0;
  int models = 0;     // the models solved
  int moments = 0;    // of the last model
  int64_t tries = 0;  // at better schedules
};

struct ScheduleQuestion {
  int64_t budget_bytes = 0;
  solver::SearchLimits limits = {};
  // A schedule within the budget, to begin with.
  std::optional<StagedSchedule> start = {};
};

// Searches the best schedule within the budget (schedule_problem.h).
ScheduleAnswer SolveSchedule(const graph::ScheduleGraph& graph,
                             const ScheduleQuestion& question);

}  // namespace acplan::problems
