#include "problems/ask.h"

#include <algorithm>
#include <utility>

#include "problems/any_schedule.h"
#include "problems/budget_frontier.h"
#include "problems/host_plans.h"
#include "problems/offload_bound.h"
#include "problems/offload_plans.h"
#include "problems/plan/plan_streams.h"
#include "problems/stream_plans.h"
#include "problems/timed_plans.h"
#include "problems/times_off_plans.h"

namespace acplan::problems {

using solver::SearchLimits;

namespace {

// Returns whether the least budget is one to plan for: proven, or met by a known plan.
bool IsUsable(const LeastAnswer& least) {
  return least.budget.proven || least.has_plan;
}

// Returns the bytes of each budget, with those of kMinimum from `least`.
std::vector<int64_t> BytesOf(const FrontierBudgets& budgets,
                             const LeastAnswer& least,
                             const PlanningProblem& problem) {
  const int64_t minimum = least.budget.bytes;
  const int64_t unplanned = problem.unplanned_peak_bytes;
  if (const int* points = std::get_if<int>(&budgets)) {
    return EvenBudgets(
        minimum, std::max(minimum, unplanned + problem.options.reserve_bytes),
        *points);
  }
  std::vector<int64_t> bytes;
  for (const Budget& budget : std::get<std::vector<Budget>>(budgets)) {
    bytes.push_back(budget.kind == Budget::Kind::kMinimum
                        ? minimum
                        : budget.Bytes(unplanned));
  }
  return bytes;
}

bool HasMinimum(const FrontierBudgets& budgets) {
  const auto* list = std::get_if<std::vector<Budget>>(&budgets);
  return list && std::ranges::find(*list, Budget::Kind::kMinimum,
                                   &Budget::kind) != list->end();
}

// Returns the limits of the bound of any schedule, which comes after the search and takes
// a moment.
SearchLimits LimitsOfAnySchedule(const SearchLimits& limits) {
  constexpr double kMostSeconds = 1;
  return {.time_limit_s = std::min(kMostSeconds, limits.time_limit_s),
          .interrupted = limits.interrupted};
}

// The least budget of plans that may offload, and the units that have it, of the first
// family, if they must offload.
struct LoweredLeast {
  LeastOfFamilies least;
  std::vector<graph::CheckpointedModule> units = {};
};

LoweredLeast Lowered(const Families& families, LeastOfFamilies least,
                     const LinkLimits& link, const SearchLimits& limits) {
  LeastAnswer of_first = least.of_family.front();
  of_first.budget = least.least.budget;
  LeastAnswer lowered =
      LeastWithOffload(families.front().problem, of_first, link, limits);
  if (lowered.budget.bytes >= least.least.budget.bytes) {
    return {.least = std::move(least)};
  }
  LoweredLeast answer{.least = std::move(least),
                      .units = lowered.units.modules};
  answer.least.least = std::move(lowered);
  return answer;
}

// Returns the family that has the units of a plan; the first one for no plan.
const FamilyProblem& FamilyOf(const Families& families, const Plan& plan) {
  for (const FamilyProblem& family : families) {
    if (!UnitsIn(family, plan).modules.empty()) return family;
  }
  return families.front();
}

// Returns the place of the family that has the units of a plan.
size_t PlaceOf(const Families& families, const Plan& plan) {
  return &FamilyOf(families, plan) - families.data();
}

// Returns the answer with the shortest step that is known for its plan's budget, on streams
// and for the host; the answer itself if the step has neither.
Answer WithShortestStep(const Question& question, Answer answer,
                        const SearchLimits& limits) {
  answer = WithStreams(question, std::move(answer), limits);
  answer = WithHost(question, std::move(answer), limits);
  answer.plan = WithProvenStep(std::move(answer.plan));
  return answer;
}

// Returns the milliseconds of a plan's step, on a trace with streams or the host's times.
double StepMsOf(const Plan& plan) {
  return std::max(plan.streams ? plan.streams->step_ms : 0,
                  plan.host ? plan.host->step_ms : 0);
}

// Returns the answer in which each plan has the shortest step that is known for its budget. A
// plan fits each larger budget, too, so no step is longer than that of a smaller budget.
FrontierAnswer WithShortestSteps(const Question& question,
                                 FrontierAnswer frontier,
                                 const SearchLimits& limits) {
  const solver::Stopwatch stopwatch;
  Answer answer{.families = std::move(frontier.families), .plan = {}};
  const Plan* smaller = nullptr;
  for (size_t k = 0; k < frontier.plans.size(); ++k) {
    Plan& plan = frontier.plans[k];
    if (!plan.HasPlan() || (!plan.streams && !plan.host)) continue;
    SearchLimits of_plan = solver::LeftOf(limits, stopwatch.Seconds());
    of_plan.time_limit_s /= static_cast<double>(frontier.plans.size() - k);
    answer.family = PlaceOf(answer.families, plan);
    answer.plan = std::move(plan);
    answer = WithShortestStep(question, std::move(answer), of_plan);
    if (smaller && StepMsOf(*smaller) < StepMsOf(answer.plan)) {
      const size_t family = PlaceOf(answer.families, *smaller);
      answer = WithUnits(std::move(answer), family,
                         UnitsIn(answer.families[family], *smaller).modules);
      answer.plan = WithProvenStep(std::move(answer.plan));
    }
    plan = std::move(answer.plan);
    smaller = &plan;
  }
  frontier.families = std::move(answer.families);
  return frontier;
}

}  // namespace

Families BuildFamilies(const Question& question) {
  Families families;
  if (question.segments.kind == SegmentKind::kNone) {
    families.push_back(
        {.runs = nullptr,
         .problem = BuildPlanningProblem(*question.profile, *question.tree,
                                         question.options, question.trace)});
    return families;
  }
  return BuildFamilies(*question.trace, question.options, question.segments);
}

Answer Ask(const Question& question, const Budget& budget,
           const std::optional<LinkLimits>& link) {
  Answer answer{.families = BuildFamilies(question), .plan = {}};
  const SearchLimits& limits = question.options.limits;
  const solver::Stopwatch stopwatch;
  std::vector<LeastAnswer> known_plans;
  int64_t budget_bytes = 0;
  std::vector<graph::CheckpointedModule> offloading_units;
  if (budget.kind == Budget::Kind::kMinimum) {
    answer.least = LeastPlan(answer.families, LimitsOfMinimum(limits));
    if (link) {
      LoweredLeast lowered = Lowered(answer.families, *std::move(answer.least),
                                     *link, LimitsOfMinimum(limits));
      answer.least = std::move(lowered.least);
      offloading_units = std::move(lowered.units);
    }
    budget_bytes = answer.least->least.budget.bytes;
    if (!IsUsable(answer.least->least)) {
      answer.plan = PlanWithoutAnswer(answer.problem(), budget_bytes,
                                      answer.least->least.budget.stopped_by);
      return answer;
    }
    known_plans = answer.least->of_family;
  } else {
    budget_bytes = budget.Bytes(answer.problem().unplanned_peak_bytes);
  }
  SearchLimits of_plan = solver::LeftOf(limits, stopwatch.Seconds());
  if (link) of_plan.time_limit_s /= 2;
  PlanOfFamilies best =
      PlanFor(answer.families, budget_bytes, of_plan, known_plans);
  answer.family = best.plan.HasPlan() ? best.family : 0;
  answer.plan =
      link ? WithOffloadBound(
                 answer.families,
                 WithOffload(answer.problem(), std::move(best.plan), *link,
                             solver::LeftOf(limits, stopwatch.Seconds()),
                             offloading_units),
                 *link, limits)
           : WithAnySchedule(answer.families.front().problem,
                             std::move(best.plan), LimitsOfAnySchedule(limits));
  return WithTimesOff(
      question, WithShortestStep(question, std::move(answer), limits), limits);
}

FrontierAnswer AskFrontier(const Question& question,
                           const FrontierBudgets& budgets,
                           const std::function<void(size_t, size_t)>& on_plan,
                           const std::optional<LinkLimits>& link) {
  FrontierAnswer answer{.families = BuildFamilies(question), .least = {}};
  const SearchLimits& limits = question.options.limits;
  const solver::Stopwatch stopwatch;
  answer.least = LeastPlan(answer.families, LimitsOfMinimum(limits));
  std::vector<graph::CheckpointedModule> offloading_units;
  if (link) {
    LoweredLeast lowered = Lowered(answer.families, std::move(answer.least),
                                   *link, LimitsOfMinimum(limits));
    answer.least = std::move(lowered.least);
    offloading_units = std::move(lowered.units);
  }
  const LeastAnswer& least = answer.least.least;
  if (HasMinimum(budgets) && !IsUsable(least)) return answer;
  const std::vector<int64_t> bytes =
      BytesOf(budgets, least, answer.families.front().problem);
  if (on_plan) on_plan(0, bytes.size());
  SearchLimits of_plans = solver::LeftOf(limits, stopwatch.Seconds());
  if (link) of_plans.time_limit_s /= 2;
  answer.plans = PlanFrontier(
      answer.families, bytes, of_plans,
      [&](size_t count) {
        if (on_plan && !link) on_plan(count, bytes.size());
      },
      answer.least.of_family);
  if (!link) {
    answer = WithShortestSteps(question, std::move(answer),
                               solver::LeftOf(limits, stopwatch.Seconds()));
  }
  for (size_t k = 0; link && k < answer.plans.size(); ++k) {
    SearchLimits of_plan = solver::LeftOf(limits, stopwatch.Seconds());
    of_plan.time_limit_s /= static_cast<double>(answer.plans.size() - k);
    Plan& plan = answer.plans[k];
    plan = WithOffloadBound(answer.families,
                            WithOffload(FamilyOf(answer.families, plan).problem,
                                        plan, *link, of_plan, offloading_units),
                            *link, of_plan);
    if (on_plan) on_plan(k + 1, bytes.size());
  }
  return answer;
}

SearchLimits LimitsOfMinimum(SearchLimits limits) {
  limits.time_limit_s /= 2;
  limits.gap = 0;
  return limits;
}

}  // namespace acplan::problems
