#include "problems/check/device_rules.h"

#include <fmt/format.h>

#include <cstdint>

#include "graph/allocator/allocator_config.h"
#include "graph/allocator/least_device.h"
#include "graph/base/byte_size.h"
#include "graph/run/run_on_device.h"
#include "problems/check/stated_number.h"
#include "problems/plan/device_run.h"

namespace acplan::problems {
namespace {

std::optional<std::string> FalseBytes(const char* what, int64_t stated,
                                      int64_t actual) {
  if (stated == kNotStated || stated == actual) return std::nullopt;
  return fmt::format("the plan says that its run {} {} bytes; it is {}", what,
                     stated, actual);
}

}  // namespace

std::optional<std::string> BrokenDeviceRule(const graph::Trace& trace,
                                            const Plan& plan) {
  if (!plan.device) return std::nullopt;
  const PlanDevice& stated = *plan.device;
  const graph::PyTorchVersion version = graph::ParsePyTorchVersion(
      stated.torch_version, "plan: device: torch_version");
  const DeviceSetting setting{
      .allocator = stated.allocator,
      .config = graph::ParseAllocatorConfig(stated.allocator,
                                            "plan: device: allocator", version),
      .makes_state_first = stated.makes_state_first,
      .ddp = stated.ddp};
  const StepOfPlan step = LiveStep(trace, plan.modules);
  const int64_t device_bytes = plan.budget_bytes - plan.reserve_bytes;
  const std::optional<PlanDevice> actual =
      FindDeviceUse(RunOf(trace, step, setting), setting, device_bytes);
  if (!actual) {
    return fmt::format(
        "out of memory: the run of the plan does not end on a device of {} "
        "with PyTorch's allocator ({})",
        graph::FormatBytes(device_bytes), stated.allocator);
  }
  if (auto broken = FalseBytes("allocates at most", stated.allocated_bytes,
                               actual->allocated_bytes)) {
    return broken;
  }
  if (auto broken = FalseBytes("reserves at most", stated.reserved_bytes,
                               actual->reserved_bytes)) {
    return broken;
  }
  if (auto broken =
          FalseBytes("needs a device of at least", stated.least_device_bytes,
                     actual->least_device_bytes)) {
    return broken;
  }
  if (stated.retries != kNotStated && stated.retries != actual->retries) {
    return fmt::format("the plan says that its run has {} retries; it has {}",
                       stated.retries, actual->retries);
  }
  if (!stated.default_least_device_bytes) return std::nullopt;
  const DeviceSetting defaults{
      .config = graph::ParseAllocatorConfig("native", "", version),
      .ddp = stated.ddp};
  return FalseBytes(
      "with the defaults needs a device of at least",
      *stated.default_least_device_bytes,
      LeastDeviceOf(RunOf(trace, step, defaults), defaults, device_bytes));
}

}  // namespace acplan::problems
