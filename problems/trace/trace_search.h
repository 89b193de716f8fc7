#pragma once

#include <cstdint>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/policy_memo.h"
#include "problems/trace/trace_least_budget.h"
#include "solver/search.h"

namespace acplan::problems {

// Solves a trace problem (trace_problem.h) by branch and bound: relaxations that
// witnesses make (relaxation.h) give bounds and plans, the plans are simulated,
// witnesses are blended towards those that count what the simulation shows, and
// parts that this does not settle are split on decisions (branching.h). The source
// tells how.

struct TraceSolution {
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  std::vector<graph::CheckpointedModule> modules = {};
  graph::Simulation use = {};  // of a rank, with these
  double bound_ms = 0;         // no plan recomputes less
  int64_t nodes = 0;           // labels made
  int64_t rows = 0;
  int64_t columns = 0;
  double seconds = 0;
  std::vector<NearPlan> near = {};  // as asked for
};

// The things that searches of one problem for several budgets have in common.
struct SearchSeries {
  // A search returns the cheapest of the plans that it simulated and that need at most so many
  // bytes; -1: none.
  int64_t near_bytes = -1;
  PolicyMemo* memo = nullptr;  // of the problem; null: each search has its own
};

// Searches for the plan that recomputes least. Optimal and infeasible are proven.
// Whatever limit strikes, the answer is the best plan found, with a bound that holds.
// Plans that cost as much as the cut-off do not count: where none costs less, there is no
// solution, and the cut-off is the bound.
// `known_modules`: a plan known before; where it fits, the answer is no worse.
TraceSolution SolveTraceProblem(
    const TraceProblem& problem, int64_t budget_bytes,
    const solver::SearchLimits& limits,
    const std::vector<graph::CheckpointedModule>& known_modules = {},
    const SearchSeries& series = {});

// Searches for the least budget (trace_least_budget.h). Where that ends with what it
// may split, searches for a plan in less than the least one end with a better one, or
// prove that there is none.
TraceMinimum SearchLeastPlan(
    const TraceProblem& problem, const solver::SearchLimits& limits,
    const std::vector<graph::CheckpointedModule>& known_modules = {});

}  // namespace acplan::problems
