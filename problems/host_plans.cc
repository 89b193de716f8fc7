#include "problems/host_plans.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "graph/trace/host_times.h"
#include "problems/regret/times_box.h"
#include "problems/step_search.h"

namespace acplan::problems {

using solver::SearchLimits;

namespace {

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

// Returns a time that the device takes no less than with any plan.
double LeastDeviceMs(const Plan& plan) {
  return plan.streams ? plan.streams->least_step_ms.value_or(0)
                      : plan.host->device_ms - plan.CostMs() + plan.bound_ms;
}

}  // namespace

Answer WithHost(const Question& question, Answer answer,
                const SearchLimits& limits) {
  if (!answer.plan.HasPlan() || !answer.plan.host || answer.plan.offload) {
    return answer;
  }
  PlanHost& host = *answer.plan.host;
  host.least_step_ms = std::max(LeastDeviceMs(answer.plan), host.baseline_ms);
  if (!answer.plan.WaitsForHost() || answer.plan.modules.empty()) return answer;

  StepSearch search(question, answer.plan, limits);
  const Times device_times = EstimatesOf(*question.trace);
  const Times host_times = HostTimesOf(*question.trace);
  bool is_first = true;
  for (const Variant& variant : VariantsOf(question.options)) {
    const double bound_ms = search.Search(
        variant.is_by_host ? host_times : device_times, variant.options);
    if (std::exchange(is_first, false)) {
      host.least_step_ms =
          std::min(std::max(*host.least_step_ms, host.baseline_ms + bound_ms),
                   host.step_ms);
    }
  }
  return search.WithShorter(std::move(answer), host.step_ms * (1 - kNearStep));
}

}  // namespace acplan::problems
