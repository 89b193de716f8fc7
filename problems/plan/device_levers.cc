#include "problems/plan/device_levers.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <string>
#include <utility>

#include "graph/allocator/device_memory.h"

namespace acplan::problems {
namespace {

using enum DeviceLever;

// The values of max_split_size_mb to simulate.
constexpr std::array<int64_t, 5> kSplitSizesMb = {32, 64, 128, 256, 512};

int64_t LeastBytes(const DeviceNeed& need) {
  return need.least_device_bytes.value_or(graph::kLargestDevice);
}

// Adds an option of PYTORCH_ALLOC_CONF.
void AddOption(DeviceSetting& setting, const std::string& option) {
  setting.allocator = setting.allocator == "native" || setting.allocator.empty()
                          ? option
                          : setting.allocator + "," + option;
  setting.config = graph::ParseAllocatorConfig(setting.allocator, "allocator",
                                               setting.config.version);
}

bool IsOfAllocator(DeviceLever lever) {
  return lever == kExpandableSegments || lever == kMaxSplitSize;
}

// Returns the plan that the lever sets; kGiven: it leaves the plan.
ProgramPlan PlanOf(DeviceLever lever) {
  switch (lever) {
    case kNoPlan:
      return ProgramPlan::kNone;
    case kLeastBudget:
      return ProgramPlan::kLeastBudget;
    case kPlanOfLongest:
      return ProgramPlan::kOfLongest;
    default:
      return ProgramPlan::kGiven;
  }
}

bool IsOfPlan(DeviceLever lever) {
  return PlanOf(lever) != ProgramPlan::kGiven;
}

class Levers {
 public:
  Levers(const RunOfProgram& run_of, const DeviceProgram& program,
         const DeviceNeed& need)
      : run_of_(run_of), program_(program), need_(need) {}

  void Add(DeviceLever lever, const DeviceProgram& changed) {
    outcomes_.push_back(OutcomeOf({lever}, changed));
  }

  // Adds the best of some programs.
  void AddBest(DeviceLever lever, const std::vector<DeviceProgram>& changed) {
    std::vector<LeverOutcome> outcomes;
    for (const DeviceProgram& program : changed) {
      outcomes.push_back(OutcomeOf({lever}, program));
    }
    outcomes_.push_back(*std::ranges::max_element(outcomes, std::ranges::less(),
                                                  &LeverOutcome::gained_bytes));
  }

  std::vector<LeverOutcome> Sorted() && {
    std::ranges::stable_sort(outcomes_, std::ranges::greater(),
                             &LeverOutcome::gained_bytes);
    AddTogether();
    return std::move(outcomes_);
  }

 private:
  LeverOutcome OutcomeOf(std::vector<DeviceLever> levers,
                         const DeviceProgram& changed) const {
    LeverOutcome outcome{
        .levers = std::move(levers),
        .program = changed,
        .need = FindDeviceNeed(run_of_(changed), changed.setting)};
    outcome.gained_bytes = LeastBytes(need_) - LeastBytes(outcome.need);
    return outcome;
  }

  // If levers exclude each other, the first of them brings most.
  void AddTogether() {
    DeviceProgram combined = program_;
    std::vector<DeviceLever> levers;
    bool has_allocator = false;
    bool has_update = false;
    for (const LeverOutcome& outcome : outcomes_) {
      const DeviceLever lever = outcome.levers.front();
      if (outcome.gained_bytes <= 0 || IsOfPlan(lever)) continue;
      if (IsOfAllocator(lever)) {
        if (std::exchange(has_allocator, true)) continue;
        combined.setting.allocator = outcome.program.setting.allocator;
        combined.setting.config = outcome.program.setting.config;
      } else {
        const bool is_before_update =
            lever == kEmptyBeforeUpdate || lever == kEmptyBeforeFirstUpdate;
        if (is_before_update && std::exchange(has_update, true)) continue;
        Merge(outcome.program, combined);
      }
      levers.push_back(lever);
    }
    if (levers.size() > 1) {
      outcomes_.push_back(OutcomeOf(std::move(levers), combined));
    }
  }

  static void Merge(const DeviceProgram& changed, DeviceProgram& combined) {
    const graph::RunOptions& run = changed.run;
    combined.setting.makes_state_first |= changed.setting.makes_state_first;
    combined.run.puts_largest_first |= run.puts_largest_first;
    combined.run.empties_cache_after_forward |= run.empties_cache_after_forward;
    combined.run.empties_cache_before_update |= run.empties_cache_before_update;
    combined.run.empties_cache_before_first_update |=
        run.empties_cache_before_first_update;
  }

  const RunOfProgram& run_of_;
  const DeviceProgram& program_;
  const DeviceNeed& need_;
  std::vector<LeverOutcome> outcomes_;
};

void AddOfAllocator(const DeviceProgram& program, Levers& levers) {
  if (program.setting.config.expandable_segments) return;
  DeviceProgram expandable = program;
  AddOption(expandable.setting, "expandable_segments:True");
  levers.Add(kExpandableSegments, expandable);
  if (program.setting.config.max_split_bytes !=
      graph::AllocatorConfig::kUnlimited) {
    return;
  }
  std::vector<DeviceProgram> split;
  for (const int64_t mb : kSplitSizesMb) {
    split.push_back(program);
    AddOption(split.back().setting, fmt::format("max_split_size_mb:{}", mb));
  }
  levers.AddBest(kMaxSplitSize, split);
}

void AddOfRun(const DeviceProgram& program, Levers& levers) {
  if (!program.setting.makes_state_first) {
    DeviceProgram first = program;
    first.setting.makes_state_first = true;
    levers.Add(kStateFirst, first);
  }
  const auto add = [&](DeviceLever lever, bool graph::RunOptions::*option) {
    if (program.run.*option) return;
    DeviceProgram changed = program;
    changed.run.*option = true;
    levers.Add(lever, changed);
  };
  add(kLargestFirst, &graph::RunOptions::puts_largest_first);
  add(kEmptyAfterForward, &graph::RunOptions::empties_cache_after_forward);
  // The first is free, so it goes first where both bring the same.
  add(kEmptyBeforeFirstUpdate,
      &graph::RunOptions::empties_cache_before_first_update);
  add(kEmptyBeforeUpdate, &graph::RunOptions::empties_cache_before_update);
}

}  // namespace

graph::RunOptions DeviceProgram::Options() const {
  graph::RunOptions options = run;
  options.makes_state_first = setting.makes_state_first;
  options.ddp = RunOptionsOf(setting).ddp;
  return options;
}

std::vector<LeverOutcome> FindLeverOutcomes(
    const RunOfProgram& run_of, const DeviceProgram& program,
    const DeviceNeed& need, const std::vector<DeviceLever>& plans) {
  Levers levers(run_of, program, need);
  AddOfAllocator(program, levers);
  AddOfRun(program, levers);
  for (const DeviceLever lever : plans) {
    DeviceProgram changed = program;
    changed.plan = PlanOf(lever);
    levers.Add(lever, changed);
  }
  return std::move(levers).Sorted();
}

}  // namespace acplan::problems
