#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/trace/operator_kinds.h"
#include "graph/trace/simulation.h"
#include "problems/ask.h"
#include "problems/plan_options.h"
#include "problems/regret/times_box.h"
#include "problems/segment_plans.h"
#include "problems/trace/trace_search.h"
#include "solver/search.h"

namespace acplan::problems {

// Plans of one question for other run-times than those of its trace. Which plans are within
// the budget does not depend on run-times, so each plan that a search finds is a plan for
// all of them.

// A plan within the budget.
struct TimedPlan {
  size_t family = 0;
  std::vector<graph::CheckpointedModule> modules = {};
  Reruns reruns = {};
  graph::ByKind<double> ms_of_kind = {};  // of recomputation, by the estimates
};

// Returns the trace with other run-times.
graph::Trace WithTimes(graph::Trace trace, const Times& times);

// Searches for the plan of a family that recomputes least by the run-times of its trace.
// `known_modules` as in SolveTraceProblem.
TraceSolution SolveFamily(
    const TraceWithRuns& family, const PlanOptions& options,
    int64_t usable_bytes, const solver::SearchLimits& limits,
    const std::vector<graph::CheckpointedModule>& known_modules = {});

// Returns the answer with other units of a family, on whose recomputation it has the same
// bounds.
Answer WithUnits(Answer answer, size_t family,
                 const std::vector<graph::CheckpointedModule>& units);

class TimedPlans {
 public:
  // Begins with the plan of an answer on a trace, without offload. Refers to question and
  // answer, which must outlive it. The limits hold for everything.
  TimedPlans(const Question& question, const Answer& answer,
             const solver::SearchLimits& limits);

  // The first is the answer's.
  const std::vector<TimedPlan>& plans() const { return plans_; }

  // Returns the least recomputation of the known plans.
  double LeastOfKnown(const Times& times) const;

  // Returns a time that no plan recomputes less than, which takes a moment.
  double QuickBound(const Times& times) const;

  // Searches for the plan that recomputes least, and adds it to the plans. Returns a time
  // that no plan recomputes less than. Ends within a share of the optimum, or after a
  // share of the time left.
  double Search(const Times& times);

  bool IsStopped() const {
    return clock_.Stop() != solver::StoppedBy::kNothing;
  }

 private:
  // Adds a plan, with what it recomputes by kind.
  void Add(TimedPlan plan);

  const Question& question_;
  const Families& families_;
  const int64_t usable_bytes_;
  const solver::LimitClock clock_;
  const graph::IndexedVector<graph::OperatorId, graph::OperatorKind> kinds_;
  std::vector<TimedPlan> plans_;
};

}  // namespace acplan::problems
