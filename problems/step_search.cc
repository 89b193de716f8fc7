#include "problems/step_search.h"

#include <algorithm>
#include <utility>

#include "graph/trace/host_times.h"
#include "graph/trace/stream_times.h"
#include "problems/segment_plans.h"
#include "problems/timed_plans.h"
#include "problems/trace/trace_search.h"

namespace acplan::problems {
namespace {

// A search ends within this share of the optimum, or after this share of the time left.
constexpr double kSearchGap = 1e-3;
constexpr double kShareOfSearch = .15;

double SumOfTimes(const Times& times) {
  double sum = 0;
  for (const double ms : times) sum += ms;
  return sum;
}

}  // namespace

StepSearch::StepSearch(const Question& question, const Plan& plan,
                       const solver::SearchLimits& limits)
    : question_(question),
      device_ms_(SumOfTimes(EstimatesOf(*question.trace))),
      has_streams_(HasStreams(*question.trace)),
      usable_bytes_(plan.budget_bytes - plan.reserve_bytes),
      clock_(limits) {}

double StepSearch::Search(const Times& times, const PlanOptions& options) {
  const graph::Trace trace = WithTimes(*question_.trace, times);
  const std::vector<std::vector<graph::ModuleRun>> runs =
      SegmentFamilies(trace, question_.segments);
  solver::SearchLimits limits = clock_.Remaining();
  limits.gap = kSearchGap;
  limits.on_progress = nullptr;
  limits.time_limit_s *= kShareOfSearch / static_cast<double>(runs.size());
  double bound_ms = solver::kInfinity;
  for (size_t f = 0; f < runs.size(); ++f) {
    const TraceWithRuns family(trace, runs[f]);
    TraceSolution solution =
        SolveFamily(family, options, usable_bytes_, limits);
    if (solution.status == solver::SearchStatus::kInfeasible) continue;
    bound_ms = std::min(bound_ms, solution.bound_ms);
    if (solution.status == solver::SearchStatus::kNoSolution) continue;
    const double step_ms =
        StepMsOf(family.trace, solution.modules, solution.use);
    if (step_ms >= best_.step_ms) continue;
    best_ = {
        .family = f, .units = std::move(solution.modules), .step_ms = step_ms};
  }
  return bound_ms;
}

// `trace`: a family's, with other run-times than the question's.
double StepSearch::StepMsOf(const graph::Trace& trace,
                            const std::vector<graph::CheckpointedModule>& units,
                            const graph::Simulation& simulation) const {
  const double device_ms =
      has_streams_ ? TimeOnStreams(*question_.trace, simulation.steps).step_ms
                   : device_ms_ + CostOf(EstimatesOf(*question_.trace),
                                         RerunsOf(trace, simulation));
  const std::optional<graph::StepMs> times =
      TimesOfStep(trace, units, simulation);
  return times ? std::max(device_ms, times->host) : device_ms;
}

Answer StepSearch::WithShorter(Answer answer, double step_ms) const {
  if (best_.step_ms >= step_ms) return answer;
  answer = WithUnits(std::move(answer), best_.family, best_.units);
  answer.is_for_step = true;
  return answer;
}

}  // namespace acplan::problems
