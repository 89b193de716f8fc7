#pragma once

#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "graph/trace/simulation.h"
#include "problems/ask.h"
#include "problems/trace/problem/trace_problem.h"
#include "tests/problems/trace/trace_case.h"

// All plans of a small step, by a measure of the step that is not what they recompute.

namespace acplan::problems {

struct StepPlan {
  int64_t peak_bytes = 0;
  double step_ms = 0;
  double recompute_ms = 0;
};

// The measure: the milliseconds of a step with the plan.
using StepMeasure = std::function<double(
    const graph::Trace&, const TracePlans::Plan&, const graph::Simulation&)>;

// Returns all plans of a question, or nothing if there are more than `most` of a family.
std::optional<std::vector<StepPlan>> StepPlansOf(const Question& question,
                                                 int64_t most,
                                                 const StepMeasure& step_ms);

struct LeastSteps {
  int64_t budget_bytes = 0;
  double least_step_ms = INFINITY;         // of the plans within the budget
  double least_recomputing_ms = INFINITY;  // of the one that recomputes least
};

// Returns the peak below which a 20th, two or three of the plans are, by the seed.
int64_t SmallBudget(std::vector<StepPlan> plans, unsigned seed);
LeastSteps LeastWithin(int64_t budget_bytes,
                       const std::vector<StepPlan>& plans);

}  // namespace acplan::problems
