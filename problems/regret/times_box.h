#pragma once

#include <cstdint>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::problems {

// Plans compared for all run-times in a box around the estimates. The source derives the
// formulas.
//
// Data
//   Operators i with estimates t_i >= 0 and factors f_i >= 1, f = max_i f_i; a plan x,
//   which runs operator i again n_i(x) times; b = 1 (steps are compared) or b = 0
//   (recomputation is).
// Variables
//   u_i in [t_i / f_i, t_i f_i], the run-times, and a plan y
// Ratio
//   r(x, y, u) = sum_i (b + n_i(x)) u_i / sum_i (b + n_i(y)) u_i

using Times = graph::IndexedVector<graph::OperatorId, double>;
using Reruns = graph::IndexedVector<graph::OperatorId, int32_t>;

enum class Measure { kRecomputation = 0, kStep = 1 };  // the values of b

inline double BaseOf(Measure measure) {
  return measure == Measure::kStep ? 1 : 0;
}

// Returns the estimates.
Times EstimatesOf(const graph::Trace& trace);

// Returns how often each operator runs again in a simulated step.
Reruns RerunsOf(const graph::Trace& trace, const graph::Simulation& simulation);

// Returns how often each operator may run again at most in a plan without units inside of
// units: a kept cast once more for each operator that would make it again.
Reruns MostReruns(const graph::Trace& trace);

// Returns the recomputation.
double CostOf(const Times& times, const Reruns& reruns);

// A plan whose ratios are asked for, and the box.
struct BoxedPlan {
  Times estimates;
  Times factors;  // of operators
  Reruns reruns;  // of the plan
  Reruns most;    // of any plan
};

// Returns the largest ratio of the plan to `other` over the box: at least 1 if both are
// the same. Infinity if only the other one costs nothing.
double LargestRatio(const BoxedPlan& plan, Measure measure,
                    const Reruns& other);

// A linear bound of what y can be better. With `ratio` = 1 + rho, over all y and u
//
//   sum_i (b + n_i(x)) u_i - ratio sum_i (b + n_i(y)) u_i
//     <= constant - sum_i weights_i n_i(y)
//
// with equality for some u if y runs no operator again more than once that may be more
// often. Weights are at least 0.
struct LinearGame {
  Measure measure = Measure::kStep;
  double ratio = 1;
  double constant = 0;
  Times weights;
};
LinearGame GameAgainst(const BoxedPlan& plan, Measure measure, double ratio);

// Returns a ratio that no y is beyond, if no y costs less than `bound` for the weights of
// the game, and none less than `least_ms` for the estimates.
double ProvenRatio(const BoxedPlan& plan, const LinearGame& game, double bound,
                   double least_ms);

// Returns a ratio that no y is beyond if none costs less than `least_ms` for the
// estimates. Needs no search. Infinity if `least_ms` proves nothing.
double RatioWithoutSearch(const BoxedPlan& plan, Measure measure,
                          double least_ms);

}  // namespace acplan::problems
