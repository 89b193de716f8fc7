#include "problems/check/offload_rules.h"

#include <fmt/format.h>

#include "graph/trace/link_time.h"
#include "graph/trace/simulation.h"
#include "problems/check/stated_number.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {

std::optional<PlanOffload> OffloadEffect(const graph::Trace& trace,
                                         const Plan& plan) {
  if (!plan.offload) return std::nullopt;
  const graph::Simulation simulation =
      graph::Simulate(trace, CheckpointedModules(trace, plan.modules));
  const graph::OffloadUse& use = simulation.offload;
  PlanOffload actual = *plan.offload;
  actual.host_bytes = use.host_peak_bytes;
  actual.sent_bytes = 0;
  for (const graph::OffloadedStorage& storage : use.storages) {
    actual.sent_bytes += trace.storages[storage.storage].bytes;
  }
  actual.storages = static_cast<int64_t>(use.storages.size());
  actual.stall_ms =
      graph::TimeOnLink(trace, simulation, plan.offload->rates).stall_ms;
  return actual;
}

std::optional<std::string> BrokenOffloadRule(const PlanOffload& stated,
                                             const PlanOffload& actual) {
  if (stated.host_memory_bytes &&
      actual.host_bytes > *stated.host_memory_bytes) {
    return fmt::format(
        "over the limit of host memory: {} bytes in use, {} allowed",
        actual.host_bytes, *stated.host_memory_bytes);
  }
  if (stated.host_bytes != actual.host_bytes) {
    return fmt::format(
        "the plan says that at most {} bytes are in host memory; it is {}",
        stated.host_bytes, actual.host_bytes);
  }
  if (stated.sent_bytes != actual.sent_bytes ||
      stated.storages != actual.storages) {
    return fmt::format(
        "the plan says that {} bytes of {} storages are offloaded; it is {} of "
        "{}",
        stated.sent_bytes, stated.storages, actual.sent_bytes, actual.storages);
  }
  if (IsFalse(stated.stall_ms, actual.stall_ms)) {
    return fmt::format("the plan says its step waits {} ms; it is {} ms",
                       stated.stall_ms, actual.stall_ms);
  }
  return std::nullopt;
}

}  // namespace acplan::problems
