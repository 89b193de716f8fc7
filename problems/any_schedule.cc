#include "problems/any_schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <stdexcept>
#include <utility>
#include <variant>

#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/rerun_bound/rerun_bound.h"

namespace acplan::problems {

Plan WithAnySchedule(const PlanningProblem& problem, Plan plan,
                     const solver::SearchLimits& limits) {
  const auto* trace_problem = std::get_if<TraceProblem>(&problem.formulation);
  if (trace_problem == nullptr || !problem.options.may_skip ||
      !plan.HasPlan()) {
    return plan;
  }
  const RerunBound bound =
      BoundReruns(*trace_problem->trace, trace_problem->bytes_of_rank,
                  plan.budget_bytes - plan.reserve_bytes, limits);
  const double ms = plan.recompute_ms;
  if (bound.ms > ms + 1e-6 * std::max(1.0, ms)) {
    throw std::logic_error(fmt::format(
        "the plan recomputes {} ms, and any schedule {} ms at least", ms,
        bound.ms));
  }
  AnySchedule any{.bound_ms = std::min(bound.ms, ms),
                  .is_loose = bound.is_loose};
  any.distance = ms > 0 ? (ms - any.bound_ms) / ms : 0;
  if (any.bound_ms > plan.bound_ms) {
    plan.bound_ms = any.bound_ms;
    plan.gap = any.distance;
  }
  plan.any_schedule = any;
  return plan;
}

}  // namespace acplan::problems
