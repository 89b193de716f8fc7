#pragma once

#include "problems/ask.h"
#include "solver/search.h"

namespace acplan::problems {

// Plans of steps on several streams.
//
// Data
//   A planning problem on a trace (trace_problem.h) with streams (graph/trace/stream_times.h):
//   S(x), the step's time with a plan x; c(x), what x runs again on the default stream.
// Model
//   minimise   S(x)     subject to the simulated peak of x <= B
// Bounds
//   1. S(x) >= S without a plan: a plan delays operators. (Not if it gathers parameters of
//      modules inside of units early.)
//   2. Let B be the default stream's first operator from the last time on at which backward
//      asks for a tensor that was saved in a unit, and A any of its operators before. All that
//      runs again does so before B, and before A at most r(A): the time of all calls whose
//      saved tensors backward asks for by then. So S(x) is at least the start of A without a
//      plan, the default stream's work from A up to B, the least c less r(A), and the longest
//      path from B on.
//   The least c is at least the least recomputation with all run-times of other streams 0.
//
// Recomputation before the default stream waits in the backward pass costs nothing up to the
// wait. A plan with the least recomputation is the best one if its step takes no longer than a
// bound. Otherwise plans are searched for with the least recomputation by other run-times, in
// which operators are cheap as far as a wait hides them, and the shortest step counts.

// Returns an answer whose plan has, on a trace with streams, the bound of any plan's step; and
// in its place, if its step is not proven to be the shortest, the best plan known for the model
// above. Throws std::logic_error if a plan fails its check.
Answer WithStreams(const Question& question, Answer answer,
                   const solver::SearchLimits& limits);

}  // namespace acplan::problems
