#pragma once

#include "problems/ask.h"
#include "solver/search.h"

namespace acplan::problems {

// Plans of steps that wait for the host.
//
// Data
//   A planning problem on a trace (trace_problem.h) with the host's times
//   (graph/trace/host_times.h): D and H without a plan; for a plan x the device's
//   recomputation d(x) and the host's added time h(x).
// Model
//   minimise   max(D + d(x), H + h(x))
//   subject to the simulated peak of x <= B
// Bound
//   The least of max(D + d, H + h) is no less than max(D + least d, H + least h). An
//   operator that runs again is in a unit and adds its share of it to h, so that the least h
//   is at least the least recomputation for these run-times.
//
// A plan with the least d is the best one if its step does not wait for the host. Otherwise
// plans are searched for that cost the host little: with the least recomputation by the
// host's times, with skips and without, and with quiet units alone.

// Returns an answer whose plan has, on a trace with the host's times, the bound of any
// plan's step; and in its place, where the step waits for the host, the best plan known for
// the model above. Throws std::logic_error if a plan fails its check.
Answer WithHost(const Question& question, Answer answer,
                const solver::SearchLimits& limits);

}  // namespace acplan::problems
