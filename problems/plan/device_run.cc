#include "problems/plan/device_run.h"

#include <fmt/format.h>

#include "graph/allocator/least_device.h"
#include "graph/run/run_on_device.h"
#include "graph/trace/simulation.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {

StepOfPlan LiveStep(const graph::Trace& trace,
                    const std::vector<PlannedModule>& units) {
  StepOfPlan result{.with_segments = WithSegmentsOf(trace, units), .step = {}};
  const graph::Trace& of_plan =
      result.with_segments ? *result.with_segments : trace;
  result.step =
      graph::Simulator(of_plan).Live(CheckpointedModules(of_plan, units));
  return result;
}

graph::TrainingRun RunOf(const graph::Trace& trace, const StepOfPlan& step,
                         bool makes_state_first) {
  return graph::MakeTrainingRun(
      step.with_segments ? *step.with_segments : trace, step.step,
      {.makes_state_first = makes_state_first});
}

std::optional<PlanDevice> FindDeviceUse(const graph::TrainingRun& run,
                                        const DeviceSetting& setting,
                                        int64_t device_bytes) {
  const graph::RunOutcome outcome =
      graph::RunOnDevice(run, setting.config, device_bytes);
  if (!outcome.Fits()) return std::nullopt;
  const std::optional<graph::LeastDevice> least =
      graph::FindLeastDevice(run, setting.config);
  const graph::AllocatorCounts& counts = outcome.replay.counts;
  return PlanDevice{
      .allocator = setting.allocator,
      .torch_version = fmt::format("{}.{}", setting.config.version.major,
                                   setting.config.version.minor),
      .makes_state_first = setting.makes_state_first,
      .allocated_bytes = counts.peak_allocated_bytes,
      .reserved_bytes = counts.peak_reserved_bytes,
      .least_device_bytes = least ? least->bytes : device_bytes,
      .retries =
          run.has_equal_iterations ? outcome.period_retries : counts.retries};
}

}  // namespace acplan::problems
