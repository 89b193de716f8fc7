#include "problems/timed_plans.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "graph/trace/allocation.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/rerun_bound/rerun_bound.h"
#include "problems/trace/trace_search.h"
#include "solver/infinity.h"

namespace acplan::problems {

using solver::SearchLimits;
using solver::SearchStatus;

namespace {

// A search ends within this share of the optimum, or after this share of the time left.
constexpr double kGap = 1e-3;
constexpr double kShareOfTime = .25;

const TraceProblem& TraceProblemOf(const FamilyProblem& family) {
  return std::get<TraceProblem>(family.problem.formulation);
}

// Returns the plan of the answer in its family.
TimedPlan PlanOf(const Answer& answer) {
  const FamilyProblem& family = answer.families[answer.family];
  TimedPlan plan{.family = answer.family,
                 .modules = UnitsIn(family, answer.plan).modules};
  plan.reruns =
      RerunsOf(*family.problem.trace,
               TraceProblemOf(family).simulator.Simulate(plan.modules));
  return plan;
}

}  // namespace

graph::Trace WithTimes(graph::Trace trace, const Times& times) {
  for (const graph::OperatorId op : trace.operators.ids()) {
    trace.operators[op].runtime_ms = times[op];
  }
  return trace;
}

TraceSolution SolveFamily(
    const TraceWithRuns& family, const PlanOptions& options,
    int64_t usable_bytes, const SearchLimits& limits,
    const std::vector<graph::CheckpointedModule>& known_modules) {
  const TraceProblem problem = BuildTraceProblem(
      family.trace, family.profile, family.tree, TraceOptionsOf(options));
  return SolveTraceProblem(problem, usable_bytes, limits, known_modules);
}

Answer WithUnits(Answer answer, size_t family,
                 const std::vector<graph::CheckpointedModule>& units) {
  const Plan before = answer.plan;
  answer.family = family;
  Plan plan = PlanOfUnits(answer.problem(), before, units);
  if (before.limit) plan.limit = before.limit;
  plan.solver = before.solver;
  plan.bound_ms = std::min(before.bound_ms, plan.recompute_ms);
  plan.gap = plan.recompute_ms > 0
                 ? (plan.recompute_ms - plan.bound_ms) / plan.recompute_ms
                 : 0;
  plan.any_schedule = before.any_schedule;
  if (plan.any_schedule && plan.recompute_ms > 0) {
    plan.any_schedule->distance =
        1 - plan.any_schedule->bound_ms / plan.recompute_ms;
  }
  if (plan.host && before.host) {
    plan.host->least_step_ms = before.host->least_step_ms;
  }
  if (plan.streams && before.streams) {
    plan.streams->least_step_ms = before.streams->least_step_ms;
  }
  answer.plan = std::move(plan);
  return answer;
}

TimedPlans::TimedPlans(const Question& question, const Answer& answer,
                       const SearchLimits& limits)
    : question_(question),
      families_(answer.families),
      usable_bytes_(answer.plan.budget_bytes - answer.plan.reserve_bytes),
      clock_(limits),
      kinds_(graph::KindsOf(*question.trace)) {
  Add(PlanOf(answer));
}

void TimedPlans::Add(TimedPlan plan) {
  for (const graph::OperatorId op : kinds_.ids()) {
    plan.ms_of_kind[static_cast<size_t>(kinds_[op])] +=
        plan.reruns[op] * question_.trace->operators[op].runtime_ms;
  }
  plans_.push_back(std::move(plan));
}

double TimedPlans::LeastOfKnown(const Times& times) const {
  double least = solver::kInfinity;
  for (const TimedPlan& plan : plans_) {
    least = std::min(least, CostOf(times, plan.reruns));
  }
  return least;
}

double TimedPlans::QuickBound(const Times& times) const {
  return BoundReruns(WithTimes(*question_.trace, times),
                     TraceProblemOf(families_.front()).bytes_of_rank,
                     usable_bytes_, clock_.Remaining())
      .ms;
}

double TimedPlans::Search(const Times& times) {
  SearchLimits limits = clock_.Remaining();
  limits.gap = kGap;
  limits.on_progress = nullptr;
  limits.time_limit_s *= kShareOfTime / static_cast<double>(families_.size());
  const graph::Trace trace = WithTimes(*question_.trace, times);
  const std::vector<std::vector<graph::ModuleRun>> runs =
      SegmentFamilies(trace, question_.segments);
  double bound_ms = solver::kInfinity;
  for (size_t f = 0; f < families_.size(); ++f) {
    const TraceWithRuns family(trace, runs[f]);
    std::vector<graph::CheckpointedModule> start;
    double least = solver::kInfinity;
    for (const TimedPlan& plan : plans_) {
      const double ms = CostOf(times, plan.reruns);
      if (plan.family != f || ms >= least) continue;
      least = ms;
      start = plan.modules;
    }
    TraceSolution solution =
        SolveFamily(family, question_.options, usable_bytes_, limits, start);
    if (solution.status == SearchStatus::kInfeasible) continue;
    bound_ms = std::min(bound_ms, solution.bound_ms);
    if (solution.status == SearchStatus::kNoSolution ||
        solution.use.recompute_ms >= least) {
      continue;
    }
    Add({.family = f,
         .modules = std::move(solution.modules),
         .reruns = RerunsOf(family.trace, solution.use)});
  }
  return bound_ms;
}

}  // namespace acplan::problems
