#include "cli/lengths/planned_batches.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <utility>

#include "cli/input/plan_input.h"
#include "cli/terminal/text.h"
#include "graph/allocator/allocator_config.h"
#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/trace/simulation.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::cli {
namespace {

using problems::LengthProblem;
using Units = std::vector<problems::PlannedModule>;

const Units& NoUnits() {
  static const Units none;
  return none;
}

problems::LengthSteps StepsUnder(const PlannedBatches& batches,
                                 problems::ProgramPlan plan) {
  const LengthProblem& problem = batches.problem;
  const int64_t longest = problem.lengths[problem.Longest()].length;
  return problems::LiveSteps(problem, [&](size_t k) -> const Units& {
    switch (plan) {
      case problems::ProgramPlan::kNone:
        return NoUnits();
      case problems::ProgramPlan::kOfLongest:
        return batches.ModulesFor(longest);
      default:
        return batches.ModulesFor(problem.lengths[k].length);
    }
  });
}

}  // namespace

const Units& PlannedBatches::ModulesFor(int64_t length) const {
  return table ? table->EntryFor(length).plan.modules : NoUnits();
}

std::unique_ptr<const PlannedBatches> UnderPlans(
    LengthProblem problem, std::optional<problems::PlanTable> table) {
  auto batches = std::make_unique<PlannedBatches>();
  batches->problem = std::move(problem);
  batches->table = std::move(table);
  batches->steps = StepsUnder(*batches, problems::ProgramPlan::kGiven);
  batches->run_steps = {.shapes = batches->steps.Shapes(batches->problem),
                        .batches = batches->problem.order};
  return batches;
}

std::unique_ptr<const PlannedBatches> ReadPlannedBatches(
    const LengthFlags& flags, const std::string& plan) {
  LengthProblem problem = flags.Read();
  if (plan.empty()) return UnderPlans(std::move(problem), std::nullopt);
  problems::PlanTable table = ReadTableOrPlan(plan, problem);
  try {
    return UnderPlans(std::move(problem), std::move(table));
  } catch (const InputError& error) {
    throw NamingFile(error, plan);
  }
}

graph::TrainingRun RunOf(const PlannedBatches& batches,
                         const problems::DeviceProgram& program) {
  if (program.plan == problems::ProgramPlan::kGiven) {
    return problems::RunOf(batches.problem, batches.steps, program.Options());
  }
  return problems::RunOf(batches.problem, StepsUnder(batches, program.plan),
                         program.Options());
}

void RequireDdp(const AllocatorFlags& flags, const LengthProblem& problem) {
  const graph::RunOptions run = flags.Question().run;
  if (run.ddp) problems::RequireDataParallel(problem, *run.ddp, "--ddp");
}

BatchesOnDevice DeviceOf(const AllocatorFlags& flags,
                         const std::optional<problems::PlanTable>& table) {
  const AllocatorQuestion question = flags.Question();
  BatchesOnDevice device{
      .setting = {.allocator =
                      flags.allocator.empty() ? "native" : flags.allocator,
                  .config = question.config,
                  .makes_state_first =
                      question.makes_state_first.value_or(false),
                  .ddp = flags.ddp},
      .device_bytes = question.device_bytes};
  const bool has_device = table && !table->device.torch_version.empty();
  if (!has_device) return device;
  const problems::PlanDevice& stated = table->device;
  if (flags.allocator.empty()) device.setting.allocator = stated.allocator;
  if (flags.ddp.empty()) device.setting.ddp = stated.ddp;
  device.setting.config = graph::ParseAllocatorConfig(
      device.setting.allocator, "table: device: allocator",
      flags.torch_version.empty()
          ? graph::ParsePyTorchVersion(stated.torch_version,
                                       "table: device: torch_version")
          : question.config.version);
  device.setting.makes_state_first =
      question.makes_state_first.value_or(stated.makes_state_first);
  if (!device.device_bytes) {
    device.device_bytes = table->memory_bytes - table->reserve_bytes;
  }
  return device;
}

std::vector<LengthRow> RowsOf(const PlannedBatches& batches) {
  std::vector<LengthRow> rows;
  const LengthProblem& problem = batches.problem;
  for (size_t k = 0; k < problem.lengths.size(); ++k) {
    LengthRow row{.length = problem.lengths[k].length,
                  .batches = problem.counts[k]};
    row.evaluations = std::ranges::count(
        problem.order,
        graph::LengthStep{.length = row.length, .is_evaluation = true});
    const Units& units =
        row.batches > 0 ? batches.ModulesFor(row.length) : NoUnits();
    const graph::Trace& trace = *batches.run_steps.shapes[k].trace;
    const graph::Simulation simulation =
        graph::Simulate(trace, problems::CheckpointedModules(trace, units));
    row.units = std::ssize(units);
    row.live_bytes = simulation.peak_bytes;
    row.recompute_ms = simulation.recompute_ms;
    rows.push_back(row);
  }
  return rows;
}

std::string BatchesText(const PlannedBatches& batches,
                        const Terminal& terminal) {
  const LengthProblem& problem = batches.problem;
  return fmt::format(
      "{}, {} batches of {} lengths",
      terminal.Bold(graph::OneLine(problem.traced.front().trace.model.name)),
      FormatCount(std::ssize(problem.order)),
      FormatCount(std::ssize(problem.lengths)));
}

}  // namespace acplan::cli
