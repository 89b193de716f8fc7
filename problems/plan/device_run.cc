#include "problems/plan/device_run.h"

#include <fmt/format.h>

#include "graph/allocator/least_device.h"
#include "graph/run/run_on_device.h"
#include "graph/trace/simulation.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {

graph::TrainingRun RunOfPlan(const graph::Trace& trace,
                             const std::vector<PlannedModule>& units) {
  const std::optional<graph::Trace> with_segments =
      WithSegmentsOf(trace, units);
  const graph::Trace& of_plan = with_segments ? *with_segments : trace;
  return graph::MakeTrainingRun(
      of_plan,
      graph::Simulator(of_plan).Live(CheckpointedModules(of_plan, units)));
}

std::optional<PlanDevice> FindDeviceUse(const graph::TrainingRun& run,
                                        const DeviceAllocator& allocator,
                                        int64_t device_bytes) {
  const graph::RunOutcome outcome =
      graph::RunOnDevice(run, allocator.config, device_bytes);
  if (!outcome.Fits()) return std::nullopt;
  const std::optional<graph::LeastDevice> least =
      graph::FindLeastDevice(run, allocator.config);
  const graph::AllocatorCounts& counts = outcome.replay.counts;
  return PlanDevice{
      .allocator = allocator.text,
      .torch_version = fmt::format("{}.{}", allocator.config.version.major,
                                   allocator.config.version.minor),
      .allocated_bytes = counts.peak_allocated_bytes,
      .reserved_bytes = counts.peak_reserved_bytes,
      .least_device_bytes = least ? least->bytes : device_bytes,
      .retries = outcome.period_retries};
}

}  // namespace acplan::problems
