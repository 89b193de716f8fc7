#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "graph/joint/joint_simulation.h"
#include "problems/remat/remat_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// What is kept, so that both passes stay within a budget and backward runs as little again
// as can be.
struct RematAnswer {
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  // With a solution: the plan and what it does.
  graph::JointRun run = {};
  // No plan within the budget runs less again. Infinity: there is none.
  double bound_ms = 0;
  // The least peak of all plans that the search came by, whatever the budget, and what
  // that plan keeps.
  int64_t least_peak_seen = 0;
  std::vector<char> least_kept = {};
  int64_t cuts = 0;    // prices tried
  int64_t labels = 0;  // beginnings of plans
  int64_t moments = 0;
  double seconds = 0;
};

struct RematQuestion {
  int64_t budget_bytes = 0;
  // At most so many are kept from forward to backward.
  int64_t kept_bytes = std::numeric_limits<int64_t>::max();
  solver::SearchLimits limits = {};
  // A plan to begin with, a buffer; empty: none.
  std::vector<char> start = {};
  // Any plan will do: then it is feasible, and not proven to be the best.
  bool is_any_enough = false;
};

RematAnswer SolveRemat(const RematProblem& problem,
                       const RematQuestion& question);

// The least budget that a plan fits.
struct LeastRematBudget {
  int64_t bytes = 0;            // of a plan that was simulated
  std::vector<char> kept = {};  // what it keeps, a buffer
  int64_t bound_bytes = 0;      // no plan fits in fewer; the same where proven
  bool exists = true;           // what rules there are may forbid every plan
};
// Found to `tolerance` of the bytes, where limits allow, for plans that keep at most
// `kept_bytes`.
LeastRematBudget FindLeastRematBudget(
    const RematProblem& problem, const solver::SearchLimits& limits,
    double tolerance = 1e-3,
    int64_t kept_bytes = std::numeric_limits<int64_t>::max());

}  // namespace acplan::problems
