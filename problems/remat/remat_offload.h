#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "problems/model/link_limits.h"
#include "problems/remat/move_fit.h"
#include "problems/remat/remat_problem.h"
#include "problems/remat/remat_search.h"
#include "solver/search.h"

namespace acplan::problems {

// The buffers that a compiled step keeps, makes again and moves to the host's memory, so
// that it stays within a budget, and recomputes and waits for the link as little as
// possible.

struct RematOffload {
  std::optional<MovedRun> best = {};
  // No plan within the budget costs less, in ms that run again and ms that wait.
  double bound_ms = 0;
  solver::StoppedBy stopped_by = solver::StoppedBy::kNothing;
  int64_t tries = 0;
};

// Throws InputError if the graph has tied nodes: then nothing moves.
void RefuseTies(const graph::JointGraph& graph);

// Looks for a plan, which costs no more than SolveRemat's answer to the question: that is
// found first, within the limits, which then begin anew for the moves.
// The search goes on from plans without moves for budgets from the
// question's to what everything kept needs, and from plans that have as much more room at
// every moment as the link can have carried by then, moves as much of each as the budget asks for,
// and improves the best one by single decisions. It proves nothing itself. The bound
// is that of plans without moves which have as much more room at every moment as the link
// can have carried by then. Throws
// as RefuseTies does.
RematOffload SolveRematOffload(const RematProblem& problem,
                               const RematQuestion& question,
                               const LinkLimits& link);

// The least peak of the plans that the search tries, and bytes that every plan needs. The
// limits begin anew once the least budget without moves is found.
struct LeastMoved {
  int64_t bytes = 0;
  int64_t bound_bytes = 0;
  graph::JointRun run = {};
};
std::optional<LeastMoved> FindLeastMoved(const RematProblem& problem,
                                         const LinkLimits& link,
                                         const solver::SearchLimits& limits);

}  // namespace acplan::problems
