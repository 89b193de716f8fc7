#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "problems/minimum_budget.h"
#include "problems/module_solution.h"
#include "problems/trace_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// Solves a trace problem (trace_problem.h).
//
// The relaxation gives a lower bound and a plan. Where the simulation of the
// plan is within the budget, it is optimal. Else the records that the relaxation
// puts too low are raised to what the simulation shows, and so on; the best plan
// within the budget is then made cheaper, a group at a time, as long as the
// simulation allows.

struct TraceSolution {
  SearchStatus status = SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  std::vector<graph::CheckpointedModule> modules = {};
  graph::Simulation use = {};  // of a rank, with these
  double bound_ms = 0;         // no plan recomputes less
  int64_t nodes = 0;           // labels made
  int64_t rows = 0;
  int64_t columns = 0;
  double seconds = 0;
};

// `known`: a plan known before; where it fits, the answer is no worse.
TraceSolution SolveTraceProblem(
    const TraceProblem& problem, int64_t budget_bytes,
    const solver::SearchLimits& limits,
    const std::vector<graph::CheckpointedModule>& known = {});

// The least budget that a plan meets (minimum_budget.h): between what the
// relaxation needs and what some plan does, by bisection.
MinimumBudget FindMinimumBudget(const TraceProblem& problem,
                                const solver::SearchLimits& limits = {});

}  // namespace acplan::problems
