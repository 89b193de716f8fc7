#include "problems/offload_plans.h"

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "problems/offload/cover_units.h"
#include "problems/offload/least_offload.h"
#include "problems/offload/offload_search.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/rank_peak.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/policy_memo.h"
#include "problems/trace/trace_search.h"
#include "solver/stop.h"

// Plans for larger budgets recompute less, and some of the results that they
// keep beyond the budget may go to the host. So the search makes such plans for
// budgets between the question's budget and the bytes that the step needs
// without a plan: first at even distances, then around the best one. In each
// plan it offloads as much as is needed to make the plan fit. With a larger
// budget less runs again, and the step waits longer for the link. The units of
// these plans are among those that cover the step (offload/cover_units.h),
// since a unit holds what it sends until the next unit has ended, which is too
// late for the large units that such plans otherwise have.
//
// A second search begins with units that keep nothing, and changes all units of a class at
// once. If a model has many equal blocks, the first one takes many small steps there and ends
// where no single step helps: at a tight budget no plan of StartFromPlans fits with all
// moved, and a cheap result that is saved first takes the link from a dear one. Neither
// search is better in all steps, so the answer is the better of both.

namespace acplan::problems {

namespace {

// Throws OptionError if nothing may be offloaded.
const TraceProblem& TraceProblemOf(const PlanningProblem& problem) {
  const auto* trace_problem = std::get_if<TraceProblem>(&problem.formulation);
  if (trace_problem == nullptr || !problem.options.may_skip) {
    throw OptionError("offload",
                      "needs a plan on a trace that may skip operators");
  }
  return *trace_problem;
}

constexpr int kEvenBudgets = 6;
constexpr int kHalvings = 4;
constexpr double kMostSeconds = 10;
// The most time for a plan for another budget, and how near to the best one it is.
constexpr double kPlanSeconds = 0.5;
constexpr double kPlanGap = 0.01;
// A plan of units alike is improved further if it costs less than so many times the best one.
constexpr double kNearFactor = 1.25;

// Returns the same problem, restricted to units that cover the step.
TraceProblem OfCover(const PlanningProblem& problem,
                     const TraceProblem& trace_problem) {
  JointProblemOptions options = TraceOptionsOf(problem.options);
  std::vector<std::string> names;
  for (const graph::CheckpointedModule& unit :
       WithCover(trace_problem, {}, {})) {
    names.push_back(trace_problem.trace->modules[unit.module].fqn);
  }
  if (!names.empty()) options.ac_units = std::move(names);
  return BuildTraceProblem(*problem.trace, *problem.profile, *problem.tree,
                           options);
}

// Starts an offload search from plans, within limits.
class Starts {
 public:
  // Keeps references to all arguments but the limits.
  Starts(const TraceProblem& problem, const solver::SearchLimits& limits,
         OffloadSearch& search)
      : problem_(problem), limits_(limits), search_(search), memo_(problem) {}

  // Starts the search from a plan for a budget, unless that alone recomputes no less than
  // the best plan costs.
  void From(int64_t usable_bytes) {
    if (IsStopped()) return;
    solver::SearchLimits limits = solver::LeftOf(limits_, watch_.Seconds());
    limits.time_limit_s = std::min(limits.time_limit_s, kPlanSeconds);
    limits.cut_off = search_.CostMs();
    limits.gap = kPlanGap;
    const double before_ms = search_.CostMs();
    const TraceSolution solution =
        SolveTraceProblem(problem_, usable_bytes, limits, {}, {.memo = &memo_});
    const bool has_plan = solution.status == solver::SearchStatus::kOptimal ||
                          solution.status == solver::SearchStatus::kFeasible;
    if (!has_plan) return;
    search_.Start(solution.modules);
    if (search_.CostMs() < before_ms) best_bytes_ = usable_bytes;
  }

  bool IsStopped() const {
    const bool is_interrupted =
        limits_.interrupted != nullptr && limits_.interrupted->load();
    return is_interrupted || watch_.Seconds() > limits_.time_limit_s ||
           search_.CostMs() <= 0;
  }

  int64_t best_bytes() const { return best_bytes_; }

 private:
  const TraceProblem& problem_;
  const solver::SearchLimits limits_;
  OffloadSearch& search_;
  PolicyMemo memo_;
  const solver::Stopwatch watch_;
  int64_t best_bytes_ = 0;
};

void StartFromPlans(Starts& starts, int64_t least, int64_t most) {
  const int64_t distance = (most - least) / kEvenBudgets;
  if (distance <= 0) return;
  for (int k = kEvenBudgets; k >= 0; --k) starts.From(least + k * distance);
  int64_t half = distance / 2;
  for (int k = 0; k < kHalvings; ++k, half /= 2) {
    const int64_t middle = starts.best_bytes();
    if (middle == 0 || half == 0) return;
    for (const int64_t bytes : {middle + half, middle - half}) {
      if (bytes >= least) starts.From(bytes);
    }
  }
}

}  // namespace

LeastAnswer LeastWithOffload(const PlanningProblem& problem, LeastAnswer least,
                             const LinkLimits& link,
                             const solver::SearchLimits& limits) {
  const TraceProblem& trace_problem = TraceProblemOf(problem);
  const double most_seconds = std::min(kMostSeconds, limits.time_limit_s);
  const solver::Stopwatch watch;
  LeastOffload found_units;
  try {
    const solver::StopScope scope(most_seconds, limits.interrupted);
    found_units = FindLeastOffload(
        {.problem = trace_problem,
         .limits = link,
         .max_units = problem.options.max_units,
         .is_stopped = [&] { return watch.Seconds() > most_seconds; }},
        least.units.modules);
  } catch (const solver::Stopped&) {
    return least;
  }
  const int64_t reserve = problem.options.reserve_bytes;
  const bool is_better = found_units.peak_bytes < INT64_MAX &&
                         found_units.peak_bytes + reserve < least.budget.bytes;
  if (!is_better) return least;
  least.budget = {
      .bytes = found_units.peak_bytes + reserve,
      .bound_bytes =
          std::min(found_units.peak_bytes,
                   FindPeakFloorOfRank(*problem.trace, problem.options.memory)
                       .bytes) +
          reserve,
      .stopped_by = solver::StoppedBy::kUnproven};
  least.has_plan = true;
  least.units = {.modules = std::move(found_units.units)};
  return least;
}

PlanOffload OffloadOver(const LinkLimits& link) {
  PlanOffload offload{.rates = link.rates};
  if (link.host_memory_bytes < INT64_MAX) {
    offload.host_memory_bytes = link.host_memory_bytes;
  }
  return offload;
}

Plan WithOffload(const PlanningProblem& problem, Plan plan,
                 const LinkLimits& link, const solver::SearchLimits& limits,
                 const std::vector<graph::CheckpointedModule>& known_units) {
  const TraceProblem* trace_problem = &TraceProblemOf(problem);
  solver::SearchLimits remaining_limits = limits;
  remaining_limits.time_limit_s =
      std::min(kMostSeconds, remaining_limits.time_limit_s);
  const solver::Stopwatch watch;
  const auto is_stopped = [&] {
    return watch.Seconds() > remaining_limits.time_limit_s ||
           (limits.interrupted != nullptr && limits.interrupted->load());
  };
  const OffloadSearchQuestion question = {
      .problem = *trace_problem,
      .budget_bytes = plan.budget_bytes - plan.reserve_bytes,
      .limits = link,
      .max_units = problem.options.max_units,
      .is_stopped = is_stopped};
  OffloadSearch search(question);
  OffloadSearch alike_search(question);
  try {
    const solver::StopScope scope(remaining_limits.time_limit_s,
                                  limits.interrupted);
    if (plan.HasPlan()) {
      search.Start(CheckpointedModules(*trace_problem->trace, plan.modules));
    }
    search.Start(known_units);
    if (!known_units.empty()) search.Start({});
    search.StartFromCovers();
    const int64_t fitting = plan.minimum_budget_bytes.value_or(
        plan.fitting_budget_bytes.value_or(plan.budget_bytes));
    const TraceProblem of_cover = OfCover(problem, *trace_problem);
    Starts starts(of_cover, remaining_limits, search);
    StartFromPlans(starts,
                   std::max(fitting, plan.budget_bytes) - plan.reserve_bytes,
                   problem.unplanned_peak_bytes);
    search.Improve();
    if (search.CostMs() > 0) {
      alike_search.StartFromCovers();
      alike_search.ImproveAlike();
      const bool may_be_better =
          alike_search.CostMs() < kNearFactor * search.CostMs();
      if (may_be_better) alike_search.Improve();
    }
  } catch (const solver::Stopped&) {
    // The search keeps its best plan.
  }
  plan.solver.seconds += watch.Seconds();
  plan.offload = OffloadOver(link);
  const std::optional<OffloadPlan>& best =
      alike_search.CostMs() < search.CostMs() ? alike_search.best()
                                              : search.best();
  if (!best) {
    if (!plan.HasPlan()) plan.status = PlanStatus::kNoPlan;
    return plan;
  }
  return PlanOfUnits(problem, plan, best->modules);
}

}  // namespace acplan::problems
