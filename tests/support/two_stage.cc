#include "tests/support/two_stage.h"

#include <algorithm>

#include "graph/profile/sac_statistics.h"
#include "problems/check/plan_check.h"
#include "problems/engines/operator_checkpointing.h"
#include "problems/planner.h"
#include "tests/support/asked_plan.h"

namespace acplan::test_support {

using graph::Profile;
using problems::Plan;
using problems::PlannedModule;

namespace {

// Adds the policy. Returns false if there is none.
bool AddPolicy(const graph::SacStatistics& sac, PlannedModule& unit) {
  const graph::OperatorGroups groups = graph::GroupOperators(sac);
  if (!groups.contradiction.empty()) return false;
  const problems::OperatorSolution solution = problems::SolveOperators(
      groups, problems::CapacityOf(groups, 1 - unit.discard_ratio));
  if (solution.status != solver::SearchStatus::kOptimal) return false;
  for (size_t k = 0; k < sac.func_names.size(); ++k) {
    unit.ops.push_back(
        {.index = static_cast<int>(k),
         .name = sac.func_names[k],
         .decision = graph::SaveOrRecompute(solution.policy.save[k] != 0)});
  }
  const auto saved = static_cast<double>(solution.policy.saved_bytes);
  unit.memory_budget = saved / static_cast<double>(groups.TotalBytes());
  unit.discard_ratio = 1 - unit.memory_budget;
  unit.discarded_bytes = problems::kNotStated;
  unit.recompute_ms = solution.policy.recompute_ms;
  return true;
}

}  // namespace

TwoStagePlan PlanInTwoStages(const Profile& profile,
                             const graph::ModuleTree& tree,
                             const problems::MemoryOptions& memory,
                             int64_t budget_bytes) {
  TwoStagePlan answer;
  answer.plan =
      test_support::AskedPlan(profile, tree,
                              {.granularity = problems::Granularity::kModule,
                               .tradeoff = problems::Tradeoff::kProfile,
                               .budget_bytes = budget_bytes,
                               .memory = memory});
  Plan& plan = answer.plan;
  if (!plan.HasPlan()) return answer;
  for (PlannedModule& unit : plan.modules) {
    const auto module =
        std::ranges::find(profile.modules, unit.fqn, &graph::Module::fqn);
    if (!module->sac || !AddPolicy(*module->sac, unit)) {
      answer.outcome = TwoStageOutcome::kNoPolicy;
      return answer;
    }
  }
  const problems::PlanEffect effect =
      ComputeEffect(profile, plan.modules, memory);
  plan.granularity = "operator";
  plan.peak_bytes = effect.peak_bytes;
  plan.peak_module = effect.peak_module;
  plan.recompute_ms = effect.recompute_ms;
  answer.outcome = effect.peak_bytes <= budget_bytes
                       ? TwoStageOutcome::kFits
                       : TwoStageOutcome::kOverBudget;
  return answer;
}

}  // namespace acplan::test_support
