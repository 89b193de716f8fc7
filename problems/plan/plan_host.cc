#include "problems/plan/plan_host.h"

#include <vector>

#include "graph/trace/host_times.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {

std::optional<PlanHost> HostOf(const graph::Trace& trace,
                               const graph::Simulator& simulator,
                               const Plan& plan) {
  if (!trace.host) return std::nullopt;
  const auto times_with =
      [&](const std::vector<graph::CheckpointedModule>& units) {
        return *TimesOfStep(trace, units, simulator.Simulate(units));
      };
  const graph::StepMs before = times_with({});
  graph::StepMs after = times_with(CheckpointedModules(trace, plan.modules));
  if (plan.offload) after.device += plan.offload->stall_ms;
  return PlanHost{.baseline_ms = before.host,
                  .ms = after.host,
                  .device_ms = after.device,
                  .step_ms = after.Longer()};
}

}  // namespace acplan::problems
