#include "cli/planning/step_times.h"

#include <algorithm>

namespace acplan::cli {

using problems::Plan;

StepTimes StepTimesOf(const Plan& plan) {
  if (plan.WaitsForHost()) {
    const double device_ms = plan.streams
                                 ? plan.streams->baseline_ms
                                 : plan.host->device_ms - plan.CostMs();
    return {.before_ms = std::max(plan.host->baseline_ms, device_ms),
            .after_ms = plan.host->step_ms};
  }
  if (plan.streams) {
    return {.before_ms = plan.streams->baseline_ms,
            .after_ms = plan.streams->step_ms};
  }
  return {.before_ms = plan.baseline.runtime_ms,
          .after_ms = plan.baseline.runtime_ms + plan.CostMs()};
}

double StepOverheadOf(const Plan& plan) {
  if (!plan.WaitsForHost()) return plan.overhead;
  const StepTimes times = StepTimesOf(plan);
  return times.after_ms / times.before_ms - 1;
}

double GapOf(const Plan& plan) {
  if (plan.offload || (!plan.streams && !plan.WaitsForHost())) return plan.gap;
  const double least_ms =
      std::max(plan.streams ? plan.streams->least_step_ms.value_or(0) : 0,
               plan.host ? plan.host->least_step_ms.value_or(0) : 0);
  return std::max(0.0, 1 - least_ms / StepTimesOf(plan).after_ms);
}

}  // namespace acplan::cli
