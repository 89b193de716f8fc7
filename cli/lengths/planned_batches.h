#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cli/lengths/length_flags.h"
#include "cli/planning/allocator_flags.h"
#include "cli/planning/run_place.h"
#include "cli/terminal/terminal.h"
#include "graph/run/training_run.h"
#include "problems/plan/device_levers.h"
#include "problems/plan/device_run.h"
#include "problems/plan/length_steps.h"
#include "problems/plan/plan_table.h"

namespace acplan::cli {

// The batches of a run, and the steps of each length under its plan.
struct PlannedBatches {
  problems::LengthProblem problem;
  std::optional<problems::PlanTable> table;  // nothing: no plan
  problems::LengthSteps steps;
  RunSteps run_steps;  // refer to the problem and the steps

  // Returns the modules that the table plans for a length.
  const std::vector<problems::PlannedModule>& ModulesFor(int64_t length) const;
};

// Returns the batches under a table of plans, or without a plan. Throws InputError for a
// plan that does not fit its step.
std::unique_ptr<const PlannedBatches> UnderPlans(
    problems::LengthProblem problem, std::optional<problems::PlanTable> table);

// Reads the batches, and the table or plan in a file ("": none). Throws InputError as
// LengthFlags::Read, ReadTableOrPlan and UnderPlans.
std::unique_ptr<const PlannedBatches> ReadPlannedBatches(
    const LengthFlags& flags, const std::string& plan);

// Returns the run of all batches under other plans than the table's, or under those.
graph::TrainingRun RunOf(const PlannedBatches& batches,
                         const problems::DeviceProgram& program);

// Throws InputError that names --ddp, if it is given and the batches cannot run with it.
void RequireDdp(const AllocatorFlags& flags,
                const problems::LengthProblem& problem);

// A setting of the allocator and a device.
struct BatchesOnDevice {
  problems::DeviceSetting setting;
  std::optional<int64_t> device_bytes;  // nothing: without a limit
};

// Returns the device that the flags name, and for flags that are not given the table's.
BatchesOnDevice DeviceOf(const AllocatorFlags& flags,
                         const std::optional<problems::PlanTable>& table);

// A length in a table of them.
struct LengthRow {
  int64_t length = 0;
  int64_t batches = 0;
  int64_t evaluations = 0;
  int64_t units = 0;       // of its plan
  int64_t live_bytes = 0;  // of a batch's step, at most
  double recompute_ms = 0;
};
std::vector<LengthRow> RowsOf(const PlannedBatches& batches);

// Returns "GPT, 40 batches of 12 lengths".
std::string BatchesText(const PlannedBatches& batches,
                        const Terminal& terminal);

}  // namespace acplan::cli
