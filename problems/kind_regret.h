#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/trace/operator_kinds.h"
#include "problems/plan/times_off.h"
#include "problems/timed_plans.h"

namespace acplan::problems {

// The regret of plans if all run-times of a kind are off by the same ratio, from 1 / factor
// to factor, with a factor for each kind. For a plan and a better one, the ratio of their times is a quotient of linear
// functions of the ratios of kinds, so it is largest at a corner of the box. At a corner
// the better plan is the best one for the run-times there: a planning problem a corner.

// The bounds of a plan's largest ratio to the best plan.
struct RatioBounds {
  double upper = 1;  // proven
  double lower = 1;  // of a known plan
};

// Returns how far ratios are above 1.
RegretBounds RegretOf(const RatioBounds& step,
                      const RatioBounds& recomputation);

class KindRegret {
 public:
  // Refers to trace and plans, which must outlive it. `least_ms`: no plan recomputes less
  // by the estimates.
  KindRegret(const graph::Trace& trace, const graph::ByKind<double>& factors,
             double least_ms, TimedPlans& plans);

  // Returns the bounds for one of the plans. Needs no search.
  RatioBounds BoundsOf(size_t plan, Measure measure) const;

  // Returns the ratios of kinds at the corner where the proven bound is the largest.
  graph::ByKind<double> WorstCorner(size_t plan, Measure measure) const;

  // Searches for better plans where this plan may lose most, until that is known there.
  void Sharpen(size_t plan, Measure measure);

  // Searches for the plan whose largest ratio of steps is the least, by cutting planes.
  struct Robust {
    size_t plan = 0;
    double least_ratio = 1;  // no plan's largest ratio is below it
  };
  Robust FindRobust();

 private:
  // The source of the bound on the best plan for the run-times at a corner.
  enum class Knowledge { kFree, kQuick, kSearched };
  struct Corner {
    graph::ByKind<double> ratios = {};
    double step_ms = 0;   // without recomputation
    double bound_ms = 0;  // no plan recomputes less
    Knowledge knowledge = Knowledge::kFree;
  };

  void AddCorner(uint32_t subset, const graph::ByKind<double>& factors,
                 double least_ms);
  double LeastAt(const graph::ByKind<double>& ratios, double least_ms) const;
  Times TimesAt(const graph::ByKind<double>& ratios) const;
  double LeastOfKnown(const Corner& corner) const;
  size_t WorstOf(const TimedPlan& plan, Measure measure) const;
  RatioBounds BoundsOf(const TimedPlan& plan, Measure measure) const;
  void Improve(Corner& corner);
  size_t LeastLosing();
  double BoundByBlend(const std::vector<double>& shares);

  const graph::Trace& trace_;
  TimedPlans& plans_;
  const graph::IndexedVector<graph::OperatorId, graph::OperatorKind> kinds_;
  graph::ByKind<double> step_of_kind_ = {};
  graph::ByKind<double> most_of_kind_ = {};  // of recomputation
  std::vector<Corner> corners_;
};

}  // namespace acplan::problems
