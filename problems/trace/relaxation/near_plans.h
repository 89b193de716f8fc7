#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <vector>

#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/branching.h"

namespace acplan::problems {

// The best plan of a trace problem that was simulated so far.
class BestPlan {
 public:
  // Refers to the problem, which must outlive it. Plans that cost `cut_off_ms` are not
  // kept. Keeps some of the plans that need at most `near_bytes`.
  BestPlan(const TraceProblem& problem, int64_t budget_bytes,
           double cut_off_ms = std::numeric_limits<double>::infinity(),
           int64_t near_bytes = -1)
      : problem_(problem),
        budget_bytes_(budget_bytes),
        cut_off_ms_(cut_off_ms),
        near_bytes_(near_bytes) {}

  // Simulates a plan, and keeps it if it is within the budget, has no more units
  // than it may have and recomputes less. Returns what it uses; nothing where
  // PyTorch refuses it.
  std::optional<graph::Simulation> Try(
      const std::vector<graph::CheckpointedModule>& modules);

  const TraceProblem& problem() const { return problem_; }
  int64_t budget_bytes() const { return budget_bytes_; }
  bool is_found() const { return is_found_; }
  const std::vector<graph::CheckpointedModule>& modules() const {
    return modules_;
  }
  const graph::Simulation& use() const { return use_; }

  // Returns the plans within the near bytes that recompute least, in ascending order.
  std::vector<NearPlan> NearPlans() const;

  // Returns what it recomputes; the cut-off where none is found.
  double Ms() const { return is_found_ ? use_.recompute_ms : cut_off_ms_; }
  // Returns whether a plan or the cut-off says what others have to beat.
  bool HasRival() const {
    return Ms() < std::numeric_limits<double>::infinity();
  }
  // Returns whether plans that recompute at least so much are no better.
  bool IsAsGoodAs(double bound_ms) const;
  // Returns whether it recomputes little more.
  bool IsNear(double ms, double gap) const {
    return is_found_ && Ms() - ms <= gap * Ms();
  }

 private:
  const TraceProblem& problem_;
  const int64_t budget_bytes_;
  const double cut_off_ms_;
  const int64_t near_bytes_;
  bool is_found_ = false;
  std::vector<graph::CheckpointedModule> modules_;
  graph::Simulation use_;
  std::vector<NearPlan> near_;
};

// Tries plain plans, which take no search, if the time of a search is up. In each of them the
// candidates at one depth are units that save only what they must; depths in the middle
// come first. Ends if `is_enough` returns true for a plan, or after as many plans as a moment allows.
void TryPlainPlans(
    const TraceProblem& problem,
    const std::function<bool(const std::vector<graph::CheckpointedModule>&)>&
        is_enough);

// Tries plain plans until one is within the budget, and then that plan with fewer units. Does
// nothing if a plan or a cut-off is known.
void FindPlainPlan(BestPlan& best);

// Makes the best plan cheaper: leaves out a unit or saves a group of operators, one
// at a time, as long as the simulation allows, in a limited number of simulations.
void Polish(BestPlan& best, const std::function<bool()>& is_stopped);

// Returns the relaxation of a plan that breaks the budget, with records that it puts
// too low raised to what the simulation shows. It bounds nothing any more, but its
// plans are near this one and nearer to the budget.
TraceRelaxation WithRaisedRecords(const TraceProblem& problem,
                                  const RelaxedPlan& plan,
                                  int64_t budget_bytes);

}  // namespace acplan::problems
