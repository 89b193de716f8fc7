#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "graph/profile/sac_statistics.h"
#include "problems/model/module_solution.h"
#include "solver/milp.h"
#include "solver/search.h"

namespace acplan::problems {

// The operator-level problem of one module: which operators to save for
// backward, and which to recompute. This is PyTorch's
// torch.distributed._tools.sac_ilp.get_optimal_checkpointing_policy_per_module.
//
// Data
//   Operators k with m_k bytes and t_k ms, and the rules of
//   graph/profile/sac_statistics.h, which make groups g of operators that are treated
//   alike, some of them forced; a capacity C in bytes.
// Variables
//   x_g in {0, 1}      group g is saved
// Model
//   maximise   sum_g t_g x_g
//   subject to sum_g m_g x_g <= C
//              x_g = 1, x_g = 0           for groups that must be saved,
//                                         recomputed
// The best policy is the one that saves the fewest bytes among the cheapest;
// among several of these, the first one in the order of operators, a saved
// operator before a recomputed one. Times are compared in fixed point
// (group_cover.h).

// A policy for one module.
struct OperatorPolicy {
  std::vector<char> save;  // by operator: 1 save, 0 recompute
  int64_t saved_bytes = 0;
  double saved_ms = 0;      // run-time of the saved operators
  double recompute_ms = 0;  // run-time of the others
};

struct OperatorSolution {
  solver::SearchStatus status = solver::SearchStatus::kNoSolution;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  OperatorPolicy policy;  // if there is one
  double bound_ms = 0;    // no policy recomputes less
  std::string engine;     // "labels" or "cbc"
  int64_t nodes = 0;      // labels, or branch-and-bound nodes
  double seconds = 0;
};

// Returns the capacity for a share of a module's memory, as PyTorch computes
// it: ceil(share * sum of memory). Requires 0 <= share <= 1.
int64_t CapacityOf(const graph::OperatorGroups& groups, double share);

// Finds a policy that is proven optimal for the capacity, by labels: groups
// whose decision a bound settles are left out, the others are added one at a
// time, and labels that cannot beat the best policy known are dropped. The
// result is infeasible if the forced groups exceed the capacity. The groups
// must not contradict each other.
OperatorSolution SolveOperators(const graph::OperatorGroups& groups,
                                int64_t capacity,
                                const solver::SearchLimits& limits = {});

// Returns the model above as a MILP, with a binary for each operator and
// PyTorch's rules one by one (ties as equations, forced operators as fixed
// columns).
solver::Milp ToOperatorMilp(const graph::SacStatistics& sac,
                            const graph::OperatorPatterns& patterns,
                            int64_t capacity);

// Solves the same problem by CBC at gap 0: a second opinion. Ties are broken as
// CBC does. Contradictory rules make the problem infeasible here.
OperatorSolution SolveOperatorsByCbc(const graph::SacStatistics& sac,
                                     const graph::OperatorPatterns& patterns,
                                     int64_t capacity,
                                     const solver::SearchLimits& limits = {});

// Returns the policy that saves these operators (one entry for each), with its
// sums.
OperatorPolicy PolicyOf(const graph::SacStatistics& sac,
                        std::vector<char> save);

}  // namespace acplan::problems
