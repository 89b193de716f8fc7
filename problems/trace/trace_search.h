#pragma once

#include <cstdint>
#include <vector>

#include "problems/model/module_solution.h"
#include "problems/trace/trace_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// Solves a trace problem (trace_problem.h).
//
// Idea. The optimum of a relaxation is a lower bound, and its plan is simulated.
// Where that is within the budget, it is a plan; where not, storages that the
// witnesses missed get witnesses that count them. What this does not settle is
// split on a decision (trace_parts.h), best bound first. A relaxation is solved
// no more exactly than is of use: its plan breaks the budget whether it is the
// cheapest or nearly so, and then it is the witnesses that have to change.
//
// Plans come first, whatever the proof takes: the relaxation's, with records
// that it puts too low raised to what the simulation shows; where none fits, the
// plan of the least budget (trace_least_budget.h), which decides whether there
// is one; each made cheaper, a unit or a group at a time, as long as the
// simulation allows.
//
// Invariant. Every plan within the budget is in an open part, or costs no less
// than the bound of a closed one, or was simulated. Bounds of parts are those of
// relaxations, or inherited.
//
// Proof. A part is closed where its bound reaches the cost of the best plan, and
// split otherwise, which loses no plan. SplitOn finds a decision as long as the
// part may have more than one plan; that of a part with one plan is simulated. So
// the search ends, and then the best plan is optimal; at any time no plan costs
// less than the least bound of open and closed parts.

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
};

// `known`: a plan known before; where it fits, the answer is no worse.
TraceSolution SolveTraceProblem(
    const TraceProblem& problem, int64_t budget_bytes,
    const solver::SearchLimits& limits,
    const std::vector<graph::CheckpointedModule>& known = {});

}  // namespace acplan::problems
