#include "costmodel/planning/stage_policies.h"

#include <algorithm>
#include <limits>

namespace acplan::costmodel {
namespace {

constexpr double kUnbounded = std::numeric_limits<double>::infinity();
// A plan that takes all there is fits, whatever the rounding: by less than a
// byte.
constexpr double kRoundingUp = 1 + 1e-13;

// A chunk of one block that a stage lacks takes no time.
bool AddsFill(const Schedule& schedule, int64_t stage) {
  return schedule.base_blocks > 0 || !StageLacksBlock(schedule, stage);
}

double LeastFill(const PlanInput& input, std::span<const PolicyTimes> policies,
                 int64_t stage) {
  double least = kUnbounded;
  for (const PolicyTimes& times : policies) {
    least = std::min(least, times.Fill(input.schedule, stage));
  }
  return least;
}

std::vector<double> LaterCosts(const PlanInput& input,
                               std::span<const PolicyTimes> policies,
                               int64_t stage) {
  const Schedule& schedule = input.schedule;
  std::vector<double> costs;
  for (const PolicyTimes& times : policies) {
    costs.push_back(AddsFill(schedule, stage) ? times.Fill(schedule, stage) /
                                                    StageBlocks(schedule, stage)
                                              : times.block);
  }
  return costs;
}

bool KeepsMost(const ChosenPolicies& chosen) {
  const StageChoice& choice = chosen.choice;
  return choice.is_feasible &&
         std::all_of(choice.counts.begin(), choice.counts.end() - 1,
                     [](int64_t count) { return count == 0; });
}

// Returns whether the answer of the stage before is this stage's, too: with as
// many blocks, which hold as much or all.
bool IsLikeBefore(const Schedule& schedule, int64_t stage,
                  const ChosenPolicies& before) {
  return StageBlocks(schedule, stage) == StageBlocks(schedule, stage - 1) &&
         (StageMicrobatches(schedule, stage) ==
              StageMicrobatches(schedule, stage - 1) ||
          KeepsMost(before));
}

}  // namespace

ChosenPolicies ChoosePolicies(const PlanInput& input, int64_t stage,
                              const PolicyOffer& offer, double cutoff) {
  const MemoryNeeds states = input.MemoryOf(stage, 0, 0);
  const double room1 = input.system.mem1.capacity * kRoundingUp - states.tier1;
  const double room2 = input.system.mem2.capacity * kRoundingUp - states.tier2;
  const bool offloads = input.execution.activations_offload;
  ChosenPolicies chosen;
  if (room1 < 0 || room2 < 0) return chosen;
  std::vector<BlockChoice> choices;
  for (size_t i = 0; i < offer.policies.size(); ++i) {
    const double bytes = offer.policies[i].bytes;
    if (offloads && bytes > room1) break;
    if (!choices.empty()) {
      if (choices.back().cost <= offer.costs[i]) continue;
      if (choices.back().bytes == bytes) {
        choices.pop_back();
        chosen.policies.pop_back();
      }
    }
    choices.push_back({bytes, offer.costs[i]});
    chosen.policies.push_back(i);
  }
  chosen.choice = ChooseForBlocks(
      choices, static_cast<int64_t>(StageBlocks(input.schedule, stage)),
      StageMicrobatches(input.schedule, stage), offloads ? room2 : room1,
      {.cutoff = cutoff});
  return chosen;
}

double LeastLaterFill(const PlanInput& input,
                      std::span<const PolicyTimes> times) {
  double least = 0;
  for (int64_t stage = 1; stage < input.execution.pipeline_par; ++stage) {
    least += LeastFill(input, times, stage);
  }
  return least;
}

LaterStages ChooseLaterStages(const PlanInput& input,
                              std::span<const PolicyTimes> times,
                              double cutoff) {
  const Schedule& schedule = input.schedule;
  LaterStages later{.stages = {}, .bound = LeastLaterFill(input, times)};
  std::vector<ChosenPolicies>& stages = later.stages;
  for (int64_t stage = 1; stage < input.execution.pipeline_par; ++stage) {
    if (StageBlocks(schedule, stage) < 1) break;
    const double others = later.bound - LeastFill(input, times, stage);
    const bool adds_fill = AddsFill(schedule, stage);
    if (stage > 1 && IsLikeBefore(schedule, stage, stages.back())) {
      stages.push_back(stages.back());
    } else {
      const std::vector<double> costs = LaterCosts(input, times, stage);
      stages.push_back(
          ChoosePolicies(input, stage, {input.block.policies, costs},
                         adds_fill ? cutoff - others : kUnbounded));
    }
    const StageChoice& choice = stages.back().choice;
    if (!choice.is_feasible) {
      later.is_feasible = false;
      break;
    }
    if (adds_fill) later.bound = others + choice.bound;
  }
  return later;
}

}  // namespace acplan::costmodel
