#include "costmodel/planning/plan_assembly.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "costmodel/llm/evaluation.h"

namespace acplan::costmodel {
namespace {

StagePlan EmptyStage(const PlanInput& input, int64_t stage) {
  return {.stage = stage,
          .blocks = static_cast<int64_t>(StageBlocks(input.schedule, stage)),
          .in_flight = StageMicrobatches(input.schedule, stage)};
}

StagePlan StageOf(const PlanInput& input, int64_t stage,
                  const ChosenPolicies& chosen,
                  std::span<const BlockPolicy> policies) {
  StagePlan plan = EmptyStage(input, stage);
  double bytes = 0;
  double most = 0;
  for (size_t i = 0; i < chosen.policies.size(); ++i) {
    const int64_t count = chosen.choice.counts[i];
    if (count == 0) continue;
    const BlockPolicy& policy = policies[chosen.policies[i]];
    plan.policies.push_back({policy.kept, count});
    bytes += static_cast<double>(count) * policy.bytes;
    most = std::max(most, policy.bytes);
  }
  plan.memory = input.MemoryOf(stage, bytes, most);
  return plan;
}

BatchTimes TimesOfFirst(const PlanInput& input, const StagePlan& first) {
  return first.policies.size() == 1
             ? input.TimesOf(input.CostsOf(first.policies[0].kept))
             : input.TimesOf(first.policies);
}

// The times of a plan: those of a pipeline whose stages are all like the first,
// less what later stages fill less of the bubble.
StrategyPlan WithTimes(const PlanInput& input, StrategyPlan plan) {
  const Schedule& schedule = input.schedule;
  const double least_block_time =
      MeanBlockTime(schedule, input.TimesOf(input.block.costs));
  plan.times = TimesOfFirst(input, plan.stages.front());
  double saved = 0;
  for (StagePlan& stage : plan.stages) {
    const bool lacks_block = StageLacksBlock(schedule, stage.stage);
    if (stage.stage > 0) {
      saved += StageFillTime(schedule, plan.times, lacks_block);
    }
    stage.seconds = stage.recompute_seconds = 0;
    for (const PolicyShare& policy : stage.policies) {
      const double blocks = static_cast<double>(policy.blocks);
      const BatchTimes times = input.TimesOf(input.CostsOf(policy.kept));
      const double seconds = MeanBlockTime(schedule, times);
      stage.seconds += blocks * seconds;
      stage.recompute_seconds += blocks * (seconds - least_block_time);
      if (stage.stage > 0) {
        saved -= blocks / static_cast<double>(stage.blocks) *
                 StageFillTime(schedule, times, lacks_block);
      }
    }
  }
  plan.times.bubble -= saved;
  plan.times.total -= saved;
  return plan;
}

}  // namespace

StrategyPlan Assemble(const PlanInput& input, const FirstStage& first,
                      const LaterStages& later) {
  StrategyPlan plan;
  plan.stages.push_back(StageOf(input, 0, first.chosen, first.policies));
  for (size_t i = 0; i < later.stages.size(); ++i) {
    plan.stages.push_back(StageOf(input, static_cast<int64_t>(i) + 1,
                                  later.stages[i], input.block.policies));
  }
  return WithTimes(input, std::move(plan));
}

StrategyPlan SmallestPlan(const PlanInput& input) {
  StrategyPlan plan;
  const BlockPolicy& policy = input.block.policies.front();
  for (int64_t stage = 0; stage < input.execution.pipeline_par; ++stage) {
    const double blocks = StageBlocks(input.schedule, stage);
    if (blocks < 1) break;
    StagePlan& one = plan.stages.emplace_back(EmptyStage(input, stage));
    one.policies = {{policy.kept, one.blocks}};
    one.memory = input.MemoryOf(stage, blocks * policy.bytes, policy.bytes);
    if (plan.verdict.Fits()) {
      plan.verdict = CheckMemory(input.system, one.memory);
    }
  }
  return WithTimes(input, std::move(plan));
}

StrategyPlan WithFirstStage(const PlanInput& input, StrategyPlan plan,
                            std::vector<PolicyShare> policies) {
  StagePlan& first = plan.stages.front();
  first.memory = input.MemoryOf(0, policies);
  first.policies = std::move(policies);
  return WithTimes(input, std::move(plan));
}

}  // namespace acplan::costmodel
