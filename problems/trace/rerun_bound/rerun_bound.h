#pragma once

#include <cstdint>
#include <vector>

#include "graph/trace/trace.h"
#include "solver/search.h"

namespace acplan::problems {

// A lower bound on the recomputation of any schedule of a traced step.
struct RerunBound {
  // No schedule within the budget recomputes less. Infinity: there is none.
  double ms = 0;
  // A limit was hit before it was as high as the method gets.
  bool is_loose = false;
  std::vector<graph::OperatorId> moments = {};  // at which memory is counted
  int64_t cuts = 0;                             // solved
  double seconds = 0;
};

// Computes a bound of what schedules recompute whose peak is at most `budget_bytes`:
// the optimum of the relaxation of the rerun problem (rerun_problem.h) in which r, z
// and l are any numbers from 0 to 1. `bytes_of_rank`: what a rank has more at each
// operator (plan/trace_memory.h). The limits of time, nodes (the cuts) and the
// interrupt count.
RerunBound BoundReruns(
    const graph::Trace& trace,
    const graph::IndexedVector<graph::OperatorId, int64_t>& bytes_of_rank,
    int64_t budget_bytes, const solver::SearchLimits& limits = {});

}  // namespace acplan::problems
