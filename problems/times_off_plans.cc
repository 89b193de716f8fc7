#include "problems/times_off_plans.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "graph/trace/operator_kinds.h"
#include "problems/kind_regret.h"
#include "problems/regret/times_box.h"
#include "problems/timed_plans.h"
#include "solver/infinity.h"

namespace acplan::problems {
namespace {

constexpr int kMostGames = 4;
// Ratios this close are as good as equal.
constexpr double kNearRatio = 1e-4;

Times FactorsOf(const graph::Trace& trace, const TimesOffOptions& options) {
  Times factors;
  for (const graph::OperatorKind kind : graph::KindsOf(trace)) {
    factors.push_back(options.factors[static_cast<size_t>(kind)]);
  }
  return factors;
}

BoxedPlan InBox(const graph::Trace& trace, const TimesOffOptions& options,
                const TimedPlan& plan) {
  return {.estimates = EstimatesOf(trace),
          .factors = FactorsOf(trace, options),
          .reruns = plan.reruns,
          .most = MostReruns(trace)};
}

// Returns the bounds of a plan's largest ratio by operator: without a search, or by games
// against the plan, each at the largest known ratio.
RatioBounds BoundsByOperator(const BoxedPlan& plan, Measure measure,
                             double least_ms, TimedPlans& plans,
                             bool is_searched) {
  RatioBounds bounds{.upper = RatioWithoutSearch(plan, measure, least_ms)};
  for (int game = 0; game < kMostGames; ++game) {
    const double before = game == 0 ? 0 : bounds.lower;
    for (const TimedPlan& other : plans.plans()) {
      bounds.lower =
          std::max(bounds.lower, LargestRatio(plan, measure, other.reruns));
    }
    const bool is_settled = bounds.lower == solver::kInfinity ||
                            bounds.lower <= before ||
                            bounds.upper <= bounds.lower * (1 + kNearRatio);
    if (!is_searched || is_settled || plans.IsStopped()) break;
    const LinearGame linear = GameAgainst(plan, measure, bounds.lower);
    const double least = std::max(plans.QuickBound(linear.weights),
                                  plans.Search(linear.weights));
    bounds.upper =
        std::min(bounds.upper, ProvenRatio(plan, linear, least, least_ms));
  }
  bounds.upper = std::max(bounds.upper, bounds.lower);
  return bounds;
}

// Returns the bounds by kind, none above those by operator, whose box is larger.
RatioBounds WithinBox(RatioBounds by_kind, const RatioBounds& by_operator) {
  by_kind.upper =
      std::max(by_kind.lower, std::min(by_kind.upper, by_operator.upper));
  return by_kind;
}

// Returns the figures of one of the plans, and searches for what makes them sharp.
TimesOff FiguresOf(const Question& question, double least_ms, size_t plan,
                   TimedPlans& plans, KindRegret& by_kind) {
  const bool is_searched = question.times_off.has_value();
  const TimesOffOptions options =
      question.times_off.value_or(TimesOffOptions());
  TimesOff figures;
  figures.factors = options.factors;
  constexpr Measure kMeasures[] = {Measure::kStep, Measure::kRecomputation};
  RatioBounds of_kinds[2];
  RatioBounds of_operators[2];
  if (is_searched) {
    for (const Measure measure : kMeasures) by_kind.Sharpen(plan, measure);
  }
  const BoxedPlan boxed = InBox(*question.trace, options, plans.plans()[plan]);
  for (size_t m = 0; m < 2; ++m) {
    of_operators[m] =
        BoundsByOperator(boxed, kMeasures[m], least_ms, plans, is_searched);
    of_kinds[m] =
        WithinBox(by_kind.BoundsOf(plan, kMeasures[m]), of_operators[m]);
  }
  figures.by_kind = RegretOf(of_kinds[0], of_kinds[1]);
  figures.by_operator = RegretOf(of_operators[0], of_operators[1]);
  if (is_searched) {
    figures.worst_kinds = by_kind.WorstCorner(plan, Measure::kStep);
  } else {
    figures.by_kind.lower.reset();
    figures.by_operator.lower.reset();
  }
  return figures;
}

}  // namespace

Answer WithTimesOff(const Question& question, Answer answer,
                    const solver::SearchLimits& limits) {
  const bool is_on_trace =
      std::holds_alternative<TraceProblem>(answer.problem().formulation);
  if (!is_on_trace || !answer.plan.HasPlan() || answer.plan.offload ||
      answer.is_for_step || answer.plan.streams || answer.plan.WaitsForHost()) {
    return answer;
  }
  const TimesOffOptions options =
      question.times_off.value_or(TimesOffOptions());
  const double least_ms = answer.plan.bound_ms;
  TimedPlans plans(question, answer, limits);
  KindRegret by_kind(*question.trace, options.factors, least_ms, plans);
  KindRegret::Robust robust;
  if (options.is_robust) robust = by_kind.FindRobust();
  if (robust.plan != 0) {
    const TimedPlan& plan = plans.plans()[robust.plan];
    Plan before = answer.plan;
    const size_t family_before = answer.family;
    answer = WithUnits(std::move(answer), plan.family, plan.modules);
    if (answer.plan.WaitsForHost()) {
      robust.plan = 0;
      answer.plan = std::move(before);
      answer.family = family_before;
    }
  }
  TimesOff figures = FiguresOf(question, least_ms, robust.plan, plans, by_kind);
  if (options.is_robust) {
    figures.least_step = std::min(std::max(0.0, robust.least_ratio - 1),
                                  figures.by_kind.upper.step);
  }
  answer.plan.times_off = figures;
  return answer;
}

}  // namespace acplan::problems
