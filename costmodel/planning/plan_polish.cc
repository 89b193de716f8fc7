#include "costmodel/planning/plan_polish.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "costmodel/llm/evaluation.h"
#include "costmodel/planning/plan_assembly.h"

namespace acplan::costmodel {
namespace {

// Policies of a first stage that fit, and the seconds of a batch with them.
struct Candidate {
  std::vector<PolicyShare> policies;
  double seconds = std::numeric_limits<double>::infinity();
};

// Seconds of a batch but for what later stages fill, with such a first stage.
double FirstSeconds(const PlanInput& input,
                    std::span<const PolicyShare> policies) {
  const Schedule& schedule = input.schedule;
  const BatchTimes times = input.TimesOf(policies);
  const double missing = schedule.missing_blocks;
  return times.total - missing * StageFillTime(schedule, times, true) -
         (schedule.pipeline_par - 1 - missing) *
             StageFillTime(schedule, times, false);
}

// With `blocks` of the i-th share given another policy.
std::vector<PolicyShare> Moved(std::vector<PolicyShare> policies, size_t i,
                               int64_t blocks, KeptTensors kept) {
  policies[i].blocks -= blocks;
  const auto same = std::ranges::find(policies, kept, &PolicyShare::kept);
  if (same == policies.end()) {
    policies.push_back({kept, blocks});
  } else {
    same->blocks += blocks;
  }
  std::erase_if(policies,
                [](const PolicyShare& share) { return share.blocks == 0; });
  return policies;
}

// `best`, or what is better and fits.
Candidate Better(const PlanInput& input, Candidate best,
                 std::vector<PolicyShare> policies) {
  const double seconds = FirstSeconds(input, policies);
  if (seconds >= best.seconds * (1 - 1e-12) ||
      !CheckMemory(input.system, input.MemoryOf(0, policies)).Fits()) {
    return best;
  }
  return {std::move(policies), seconds};
}

// Gives one block, or all that share a policy, another one, while that helps.
Candidate Climb(const PlanInput& input, Candidate from) {
  constexpr int kMostRounds = 20;
  for (int round = 0; round < kMostRounds; ++round) {
    Candidate best = from;
    for (size_t i = 0; i < from.policies.size(); ++i) {
      const PolicyShare& share = from.policies[i];
      for (const BlockPolicy& policy : input.block.policies) {
        if (policy.kept == share.kept) continue;
        best = Better(input, std::move(best),
                      Moved(from.policies, i, 1, policy.kept));
        if (share.blocks == 1) continue;
        best = Better(input, std::move(best),
                      Moved(from.policies, i, share.blocks, policy.kept));
      }
    }
    if (best.seconds == from.seconds) break;
    from = std::move(best);
  }
  return from;
}

}  // namespace

StrategyPlan Polished(const PlanInput& input, const StrategyPlan& plan) {
  if (plan.IsOptimal() || plan.bound >= input.cutoff) return plan;
  const auto blocks = static_cast<int64_t>(input.schedule.blocks);
  Candidate same;
  for (const BlockPolicy& policy : input.block.policies) {
    same = Better(input, std::move(same), {{policy.kept, blocks}});
  }
  const std::vector<PolicyShare>& planned = plan.stages.front().policies;
  Candidate best = Climb(input, {planned, FirstSeconds(input, planned)});
  if (!same.policies.empty()) {
    same = Climb(input, std::move(same));
    if (same.seconds < best.seconds) best = std::move(same);
  }
  std::ranges::sort(best.policies, {}, [&](const PolicyShare& share) {
    return KeptBytes(input.block.operators, share.kept);
  });
  StrategyPlan other = WithFirstStage(input, plan, std::move(best.policies));
  return other.times.total < plan.times.total ? other : plan;
}

}  // namespace acplan::costmodel
