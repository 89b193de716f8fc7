#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/terminal/terminal.h"
#include "graph/run/peak_layout.h"
#include "graph/run/run_on_device.h"
#include "graph/run/training_run.h"
#include "graph/trace/trace.h"
#include "problems/plan/device_levers.h"
#include "problems/plan/device_run.h"

namespace acplan::cli {

// The steps of a trace whose runs an explanation compares.
struct StepsOnDevice {
  problems::StepOfPlan baseline;                  // without a plan
  std::unique_ptr<problems::StepOfPlan> of_plan;  // null: no plan is given
  problems::StepOfPlan least;                     // the least budget
};

// The way in which a run ends on a device, and what would change that.
struct DeviceExplanation {
  const graph::Trace* trace = nullptr;
  const StepsOnDevice* steps = nullptr;
  int64_t device_bytes = 0;
  problems::DeviceProgram program;
  graph::TrainingRun run;
  graph::RunOutcome outcome;
  problems::DeviceNeed need;
  graph::PeakLayout peak;  // or the memory at the failure
  std::vector<problems::LeverOutcome> levers;
  std::vector<bool> fits;  // indexed by lever: the run ends on the device
};

// Runs the plan's steps, or those without a plan if none is given, on a device, and
// again with each lever. `trace` and `steps` must outlive the explanation.
DeviceExplanation ExplainDevice(const graph::Trace& trace,
                                const StepsOnDevice& steps,
                                const problems::DeviceSetting& setting,
                                int64_t device_bytes);

// Returns whether a run with the setting ends on a device.
bool EndsOnDevice(const graph::Trace& trace, const problems::StepOfPlan& step,
                  const problems::DeviceSetting& setting, int64_t device_bytes);

// Returns the entry "device" of an explanation (docs/file_formats.md).
nlohmann::ordered_json ToJson(const DeviceExplanation& answer);

// Returns the paragraphs on the device; `top` lines beside holes.
std::string ToText(const DeviceExplanation& answer, size_t top,
                   const Terminal& terminal);

}  // namespace acplan::cli
