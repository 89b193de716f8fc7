#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/ask.h"
#include "problems/plan/plan.h"
#include "problems/regret/times_box.h"
#include "solver/infinity.h"
#include "solver/search.h"

namespace acplan::problems {

// Searches for the plan with the shortest step of those that recompute least by other
// run-times or with other decisions. A step takes the longer of the device's time, by
// streams if it has several, and the host's, if the trace has it.
class StepSearch {
 public:
  struct StepPlan {
    size_t family = 0;
    std::vector<graph::CheckpointedModule> units = {};
    double step_ms = solver::kInfinity;
  };

  // `plan` answers the question, on a trace, without offload.
  StepSearch(const Question& question, const Plan& plan,
             const solver::SearchLimits& limits);

  // Searches for the plan that recomputes least by these run-times in all families. Returns
  // what no plan recomputes less than, by these run-times. Ends within a share of the
  // optimum, or after a share of the time left.
  double Search(const Times& times, const PlanOptions& options);

  // Returns the answer with the plan that has the shortest step if that is shorter than
  // `step_ms`; otherwise the answer unchanged.
  Answer WithShorter(Answer answer, double step_ms) const;

 private:
  double StepMsOf(const graph::Trace& trace,
                  const std::vector<graph::CheckpointedModule>& units,
                  const graph::Simulation& simulation) const;

  const Question& question_;
  const double device_ms_;  // of all operators, once
  const bool has_streams_;
  const int64_t usable_bytes_;
  const solver::LimitClock clock_;
  StepPlan best_;
};

}  // namespace acplan::problems
