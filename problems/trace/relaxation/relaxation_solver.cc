#include "problems/trace/relaxation/relaxation_solver.h"

#include <algorithm>
#include <map>
#include <utility>

#include "problems/engines/labels/joint_labels.h"

namespace acplan::problems {

namespace {

// So often the policies of a unit become exact in a relaxation, each time near
// another price or in a narrower band.
constexpr int kMostSharpenings = 3;

}  // namespace

ModuleSolution RelaxationSolver::Solve(JointProblem& joint, double gap,
                                       int64_t labels) {
  joint.relaxed.budget_bytes = static_cast<double>(best_.budget_bytes());
  solver::SearchLimits limits = watch_.RemainingLimits();
  limits.node_limit = std::min(limits.node_limit, labels);
  limits.gap = gap;
  limits.cut_off = best_.Ms();
  if (limits.on_progress) {
    limits.on_progress = [&](const solver::SearchProgress& progress) {
      watch_.limits().on_progress(
          {.best = best_.Ms(),
           .bound = bound_(),
           .nodes = watch_.effort().labels + progress.nodes,
           .seconds = watch_.Seconds()});
    };
  }
  ModuleSolution solution = SolveJointByLabels(joint, limits);
  watch_.Count(solution);
  return solution;
}

ModuleSolution RelaxationSolver::SolveSharply(TraceRelaxation& relaxation,
                                              double gap, int64_t labels) {
  ModuleSolution solution = Solve(relaxation.joint, gap, labels);
  std::map<int, int> times;  // a node
  while (best_.HasRival() && !best_.IsAsGoodAs(solution.bound_ms) &&
         watch_.LimitReached(best_.Ms(), bound_()) ==
             solver::StoppedBy::kNothing) {
    bool is_open = false;
    for (const ChosenUnit& unit : solution.units) {
      is_open |=
          !relaxation.IsExact(unit) && ++times[unit.node] <= kMostSharpenings;
    }
    if (!is_open) break;
    relaxation = Sharpened(best_.problem(), std::move(relaxation),
                           solution.units, best_.Ms(), memo_);
    solution = Solve(relaxation.joint, gap, labels);
  }
  return solution;
}

}  // namespace acplan::problems
