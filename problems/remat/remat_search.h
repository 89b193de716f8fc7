#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "graph/joint/joint_simulation.h"
#include "problems/remat/remat_problem.h"
#include "solver/search.h"

namespace acplan::problems {

// The values to keep so that both passes stay within a budget and backward runs
// as little again as possible.
struct RematAnswer {
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  // The simulation of the plan, if there is a solution.
  graph::JointRun run = {};
  // No plan within the budget runs less again. Infinity: there is no plan.
  double bound_ms = 0;
  // The least peak of all plans that the search simulated, for every budget,
  // and the buffers that this plan keeps.
  int64_t least_peak_seen = 0;
  std::vector<char> least_kept = {};
  int64_t cuts = 0;    // prices tried
  int64_t labels = 0;  // beginnings of plans
  int64_t moments = 0;
  double seconds = 0;
};

struct RematQuestion {
  int64_t budget_bytes = 0;
  // The most bytes that are kept from forward to backward.
  int64_t kept_bytes = std::numeric_limits<int64_t>::max();
  solver::SearchLimits limits = {};
  // A plan to begin with, by buffer; empty: none.
  std::vector<char> start = {};
  // Any plan will do: then it is feasible, but not proven to be the best.
  bool is_any_enough = false;
};

// Returns the bytes that every plan needs.
int64_t LeastBase(const RematProblem& problem);

RematAnswer SolveRemat(const RematProblem& problem,
                       const RematQuestion& question);

// The least budget that a plan fits.
struct LeastRematBudget {
  int64_t bytes = 0;               // of a plan that was simulated
  std::vector<char> is_kept = {};  // by buffer: whether that plan keeps it
  int64_t bound_bytes = 0;         // no plan fits in fewer; equal to `bytes` if
                                   // proven
  bool exists = true;              // false if the rules forbid every plan
};
// Finds it to `tolerance` of the bytes, if limits allow, for plans that keep at
// most `kept_bytes`.
LeastRematBudget FindLeastRematBudget(
    const RematProblem& problem, const solver::SearchLimits& limits,
    double tolerance = 1e-3,
    int64_t kept_bytes = std::numeric_limits<int64_t>::max());

}  // namespace acplan::problems
