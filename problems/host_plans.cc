#include "problems/host_plans.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>
#include <vector>

#include "graph/trace/host_times.h"
#include "graph/trace/simulation.h"
#include "problems/regret/times_box.h"
#include "problems/segment_plans.h"
#include "problems/timed_plans.h"
#include "problems/trace/trace_search.h"
#include "solver/infinity.h"

namespace acplan::problems {

using solver::SearchLimits;

namespace {

// A search ends within this share of the optimum, or after this share of the time left.
constexpr double kVariantGap = 1e-3;
constexpr double kShareOfVariant = .15;
// A plan whose step is shorter by less than this share is no other plan.
constexpr double kNearStep = 1e-3;

// Returns what a rerun of each operator adds at least to the host's time.
Times HostTimesOf(const graph::Trace& trace) {
  const graph::HostTimes& host = *trace.host;
  Times times(trace.operators.size());
  for (const graph::OperatorId op : trace.operators.ids()) {
    const bool is_view = trace.operators[op].view;
    times[op] = (std::min(host.unit.Us(is_view), host.quiet_unit.Us(is_view)) +
                 (is_view ? 0 : host.launch_us)) *
                1e-3;
  }
  return times;
}

struct HostPlan {
  size_t family = 0;
  std::vector<graph::CheckpointedModule> units = {};
  double step_ms = solver::kInfinity;
};

// The plans of the question with other decisions or other run-times.
struct Variant {
  PlanOptions options;
  bool is_by_host = false;  // the run-times are the host's
};

std::vector<Variant> VariantsOf(const PlanOptions& options) {
  std::vector<Variant> variants = {{options, true}};
  PlanOptions without_skips = options;
  without_skips.may_skip = false;
  if (options.may_skip) variants.push_back({without_skips, false});
  if (options.patterns.save.empty()) {
    PlanOptions quiet = without_skips;
    quiet.patterns.recompute = {"*"};
    variants.push_back({std::move(quiet), true});
  }
  variants.push_back({std::move(without_skips), true});
  return variants;
}

class HostSearch {
 public:
  HostSearch(const Question& question, const Plan& plan,
             const SearchLimits& limits)
      : question_(question),
        device_ms_(plan.host->device_ms - plan.CostMs()),
        usable_bytes_(plan.budget_bytes - plan.reserve_bytes),
        clock_(limits),
        host_times_(HostTimesOf(*question.trace)) {}

  // Searches for the best plan of a variant in all families. Returns what no plan of the
  // variant recomputes less than, by the variant's run-times.
  double Search(const Variant& variant) {
    const graph::Trace trace = variant.is_by_host
                                   ? WithTimes(*question_.trace, host_times_)
                                   : *question_.trace;
    const std::vector<std::vector<graph::ModuleRun>> runs =
        SegmentFamilies(trace, question_.segments);
    SearchLimits limits = clock_.Remaining();
    limits.gap = kVariantGap;
    limits.on_progress = nullptr;
    limits.time_limit_s *= kShareOfVariant / static_cast<double>(runs.size());
    double bound_ms = solver::kInfinity;
    for (size_t f = 0; f < runs.size(); ++f) {
      const TraceWithRuns family(trace, runs[f]);
      TraceSolution solution =
          SolveFamily(family, variant.options, usable_bytes_, limits);
      if (solution.status == solver::SearchStatus::kInfeasible) continue;
      bound_ms = std::min(bound_ms, solution.bound_ms);
      if (solution.status == solver::SearchStatus::kNoSolution) continue;
      Consider(family.trace, f, std::move(solution));
    }
    return bound_ms;
  }

  const HostPlan& best() const { return best_; }

 private:
  void Consider(const graph::Trace& trace, size_t family,
                TraceSolution solution) {
    const double device_ms = device_ms_ + CostOf(EstimatesOf(*question_.trace),
                                                 RerunsOf(trace, solution.use));
    const double step_ms = std::max(
        device_ms, TimesOfStep(trace, solution.modules, solution.use)->host);
    if (step_ms >= best_.step_ms) return;
    best_ = {.family = family,
             .units = std::move(solution.modules),
             .step_ms = step_ms};
  }

  const Question& question_;
  const double device_ms_;  // of the step without recomputation
  const int64_t usable_bytes_;
  const solver::LimitClock clock_;
  const Times host_times_;
  HostPlan best_;
};

}  // namespace

Answer WithHost(const Question& question, Answer answer,
                const SearchLimits& limits) {
  if (!answer.plan.HasPlan() || !answer.plan.host || answer.plan.offload) {
    return answer;
  }
  PlanHost& host = *answer.plan.host;
  host.least_step_ms =
      std::max(host.device_ms - answer.plan.CostMs() + answer.plan.bound_ms,
               host.baseline_ms);
  if (!answer.plan.WaitsForHost() || answer.plan.modules.empty()) return answer;

  HostSearch search(question, answer.plan, limits);
  bool is_first = true;
  for (const Variant& variant : VariantsOf(question.options)) {
    const double bound_ms = search.Search(variant);
    if (std::exchange(is_first, false)) {
      host.least_step_ms =
          std::min(std::max(*host.least_step_ms, host.baseline_ms + bound_ms),
                   host.step_ms);
    }
  }
  if (search.best().step_ms < host.step_ms * (1 - kNearStep)) {
    answer =
        WithUnits(std::move(answer), search.best().family, search.best().units);
    answer.is_for_host = true;
  }
  return answer;
}

}  // namespace acplan::problems
