#pragma once

#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "cli/planning/run_place.h"
#include "cli/terminal/terminal.h"
#include "graph/run/peak_layout.h"
#include "graph/run/run_on_device.h"
#include "graph/run/training_run.h"
#include "problems/plan/device_levers.h"
#include "problems/plan/device_run.h"

namespace acplan::cli {

// A program whose run is explained.
struct ExplainedProgram {
  problems::DeviceProgram program;
  problems::RunOfProgram run_of;  // of this program and of those with levers
  RunSteps steps;                 // of this program
  std::vector<problems::DeviceLever> plans;  // levers that replace its plan
};

// The way in which a run ends on a device, and what would change that.
struct DeviceExplanation {
  RunSteps steps;
  int64_t device_bytes = 0;
  problems::DeviceProgram program;
  graph::TrainingRun run;
  graph::RunOutcome outcome;
  problems::DeviceNeed need;
  graph::PeakLayout peak;  // or the memory at the failure
  std::vector<problems::LeverOutcome> levers;
  std::vector<bool> fits;  // indexed by lever: the run ends on the device
};

// Runs the program on a device, and again with each lever. The traces and steps to which
// its steps refer must outlive the explanation.
DeviceExplanation ExplainDevice(const ExplainedProgram& explained,
                                int64_t device_bytes);

// Returns the entry "device" of an explanation (docs/file_formats.md).
nlohmann::ordered_json ToJson(const DeviceExplanation& answer);

// Returns the paragraphs on the device; `top` lines beside holes.
std::string ToText(const DeviceExplanation& answer, size_t top,
                   const Terminal& terminal);

}  // namespace acplan::cli
