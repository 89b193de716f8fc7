#include "problems/plan/device_run.h"

#include <fmt/format.h>

#include "graph/allocator/device_memory.h"
#include "graph/allocator/least_device.h"
#include "graph/run/data_parallel.h"
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
                         const graph::RunOptions& options) {
  if (options.ddp)
    graph::RequireDataParallel(trace, *options.ddp, "device: ddp");
  return graph::MakeTrainingRun(
      step.with_segments ? *step.with_segments : trace, step.step, options);
}

graph::RunOptions RunOptionsOf(const DeviceSetting& setting) {
  graph::RunOptions options{.makes_state_first = setting.makes_state_first};
  if (!setting.ddp.empty()) {
    options.ddp = graph::ParseDdpOptions(setting.ddp, "device: ddp");
  }
  return options;
}

graph::TrainingRun RunOf(const graph::Trace& trace, const StepOfPlan& step,
                         const DeviceSetting& setting) {
  return RunOf(trace, step, RunOptionsOf(setting));
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
      .ddp = setting.ddp,
      .allocated_bytes = counts.peak_allocated_bytes,
      .reserved_bytes = counts.peak_reserved_bytes,
      .least_device_bytes = least ? least->bytes : device_bytes,
      .retries =
          run.has_equal_iterations ? outcome.period_retries : counts.retries};
}

int64_t LeastLargerDevice(const graph::TrainingRun& run,
                          const DeviceSetting& setting, int64_t device_bytes) {
  const std::optional<graph::LeastDevice> least =
      graph::FindLeastDevice(run, setting.config, device_bytes + 1);
  return least ? least->bytes : graph::kLargestDevice;
}

int64_t LeastDeviceOf(const graph::TrainingRun& run,
                      const DeviceSetting& setting, int64_t device_bytes) {
  const std::optional<PlanDevice> use =
      FindDeviceUse(run, setting, device_bytes);
  return use ? use->least_device_bytes
             : LeastLargerDevice(run, setting, device_bytes);
}

DeviceNeed FindDeviceNeed(const graph::TrainingRun& run,
                          const DeviceSetting& setting) {
  const graph::RunOutcome outcome =
      graph::RunOnDevice(run, setting.config, graph::kLargestDevice);
  const std::optional<graph::LeastDevice> least =
      graph::FindLeastDevice(run, setting.config);
  const graph::AllocatorCounts& counts = outcome.replay.counts;
  DeviceNeed need{.setting = setting,
                  .allocated_bytes = counts.peak_allocated_bytes,
                  .reserved_bytes = counts.peak_reserved_bytes};
  if (least) need.least_device_bytes = least->bytes;
  return need;
}

std::vector<DeviceSetting> CommonSettings(graph::PyTorchVersion version) {
  std::vector<DeviceSetting> settings;
  for (const bool makes_state_first : {false, true}) {
    for (const char* allocator : {"native", "expandable_segments:True"}) {
      settings.push_back(
          {.allocator = allocator,
           .config = graph::ParseAllocatorConfig(allocator, "", version),
           .makes_state_first = makes_state_first});
    }
  }
  return settings;
}

std::vector<DeviceNeed> NeedsOfPlan(const graph::Trace& trace,
                                    const std::vector<PlannedModule>& units,
                                    graph::PyTorchVersion version) {
  const StepOfPlan step = LiveStep(trace, units);
  std::vector<DeviceNeed> needs;
  std::optional<graph::TrainingRun> run;
  for (const DeviceSetting& setting : CommonSettings(version)) {
    if (needs.size() % 2 == 0) {
      run = RunOf(trace, step, setting);
    }
    needs.push_back(FindDeviceNeed(*run, setting));
  }
  return needs;
}

}  // namespace acplan::problems
