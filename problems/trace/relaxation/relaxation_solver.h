#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <utility>

#include "problems/model/module_solution.h"
#include "problems/trace/relaxation/limit_watch.h"
#include "problems/trace/relaxation/near_plans.h"
#include "problems/trace/relaxation/policy_memo.h"
#include "problems/trace/relaxation/relaxation.h"

namespace acplan::problems {

// Solves relaxations of a trace problem within the limits of a search, looking only
// for plans that cost less than the best one so far.
class RelaxationSolver {
 public:
  static constexpr int64_t kNoLimit = std::numeric_limits<int64_t>::max();

  // Takes what the search has: `bound` returns what it has proven, and `memo` is null or has
  // policies of earlier searches. Refers to all of them, which must outlive it.
  RelaxationSolver(const BestPlan& best, LimitWatch& watch,
                   std::function<double()> bound, PolicyMemo* memo)
      : best_(best),
        watch_(watch),
        bound_(std::move(bound)),
        own_memo_(best.problem()),
        memo_(memo == nullptr ? own_memo_ : *memo) {}

  // Solves a relaxation to within a gap, or with so many labels.
  ModuleSolution Solve(JointProblem& joint, double gap,
                       int64_t labels = kNoLimit);

  // Solves a relaxation, and sharpens it (relaxation.h) as long as its plan has
  // policies that are relaxed.
  ModuleSolution SolveSharply(TraceRelaxation& relaxation, double gap,
                              int64_t labels = kNoLimit);

  PolicyMemo& memo() { return memo_; }

 private:
  const BestPlan& best_;
  LimitWatch& watch_;
  std::function<double()> bound_;
  PolicyMemo own_memo_;
  PolicyMemo& memo_;
};

}  // namespace acplan::problems
