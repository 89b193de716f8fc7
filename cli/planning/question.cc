#include "cli/planning/question.h"

#include <cstddef>
#include <utility>

#include "problems/budget_frontier.h"

namespace acplan::cli {

PlanningQuestion::PlanningQuestion(const PlanningFlags& flags,
                                   const ProfileInput& input,
                                   const graph::ModuleTree& tree,
                                   const problems::PlanOptions& options) {
  const problems::SegmentChoice segments = flags.Segments(input, options);
  if (segments.kind == problems::SegmentKind::kNone) {
    without_ =
        BuildPlanningProblem(input.profile, tree, options, input.TraceIfAny());
  } else {
    with_segments_ = BuildProblemsWithSegments(*input.trace, options, segments);
  }
}

const problems::PlanningProblem& PlanningQuestion::problem() const {
  return without_ ? *without_ : with_segments_.front()->problem;
}

problems::LeastWithSegments PlanningQuestion::Least(
    const solver::SearchLimits& limits) const {
  if (!without_) return LeastPlan(with_segments_, limits);
  const problems::LeastAnswer least = LeastPlan(*without_, limits);
  return {.least = least, .of_family = {least}};
}

PlanningQuestion::LeastUnits PlanningQuestion::UnitsOf(
    const problems::LeastWithSegments& least) const {
  for (size_t k = 0; k < least.of_family.size(); ++k) {
    const problems::LeastAnswer& answer = least.of_family[k];
    if (answer.has_plan && answer.budget.bytes == least.least.budget.bytes) {
      return {.trace = without_ ? without_->trace : &with_segments_[k]->trace,
              .modules = answer.units.modules};
    }
  }
  return {.trace = problem().trace, .modules = least.least.units.modules};
}

PlanningQuestion::Found PlanningQuestion::PlanWithin(
    int64_t budget_bytes, const solver::SearchLimits& limits,
    const std::vector<problems::LeastAnswer>& known) const {
  if (!without_) {
    problems::PlanWithSegments found =
        PlanFor(with_segments_, budget_bytes, limits, known);
    return {.plan = std::move(found.plan), .problem = &found.problem->problem};
  }
  const problems::KnownUnits units =
      known.empty() ? problems::KnownUnits() : known.front().units;
  return {.plan = PlanFor(*without_, budget_bytes, limits, units).plan,
          .problem = &*without_};
}

std::vector<problems::Plan> PlanningQuestion::PlansWithin(
    const std::vector<int64_t>& budgets, const solver::SearchLimits& limits,
    const std::function<void(size_t)>& done,
    const std::vector<problems::LeastAnswer>& known) const {
  if (!without_) {
    return PlanFrontier(with_segments_, budgets, limits, done, known);
  }
  return PlanFrontier(
      *without_, budgets, limits, done,
      known.empty() ? problems::KnownUnits() : known.front().units);
}

}  // namespace acplan::cli
