#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "graph/profile/module_tree.h"
#include "problems/check/plan_check.h"
#include "problems/engines/minimum_budget.h"
#include "problems/model/module_problem.h"
#include "problems/plan/baseline.h"
#include "problems/planner.h"
#include "tests/support/asked_plan.h"
#include "tests/support/reference_data.h"

namespace acplan::problems {
namespace {

using graph::ModuleTree;
using graph::Profile;
using test_support::BundledProfile;

// With max_units, bounds credit the remaining units, so that a pass may end
// with a label that is no better than the best plan. Such a label must not
// replace it.

class MaxUnits : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(BundledProfiles, MaxUnits,
                         ::testing::Values("gpt2_small", "vit_large", "llama8b",
                                           "unet", "resnet50", "bert_large"),
                         [](const auto& profile) { return profile.param; });

int64_t LeastBudget(const Profile& profile, const ModuleTree& tree,
                    int max_units) {
  ModuleProblemOptions options;
  options.max_units = max_units;
  const MinimumBudget least =
      FindMinimumBudget(BuildModuleProblem(profile, tree, options).problem);
  EXPECT_TRUE(least.proven);
  return least.bytes;
}

TEST_P(MaxUnits, MoreUnitsAndMoreBytesNeverCostMore) {
  const Profile& profile = BundledProfile(GetParam());
  const ModuleTree tree(profile);
  const std::vector<int> limits{1, 2, 3, 5, 8, 12, 16, 20};
  std::map<int, int64_t> least_budget;
  for (const int limit : limits) {
    least_budget[limit] = LeastBudget(profile, tree, limit);
  }
  const auto baseline =
      static_cast<double>(ComputeBaseline(profile, tree, {}).peak_bytes);
  std::vector<int64_t> budgets;
  for (const int limit : {1, 3, 8, 20}) {
    const auto least = static_cast<double>(least_budget[limit]);
    for (const double share : {0.0, 0.2, 0.6}) {
      budgets.push_back(std::llround(least + share * (baseline - least)));
    }
  }
  std::ranges::sort(budgets);

  std::map<int, double> at_smaller_budget;  // by limit
  int solved = 0;
  for (const int64_t budget : budgets) {
    double with_fewer = std::numeric_limits<double>::infinity();
    for (const int limit : limits) {
      if (budget < least_budget[limit]) continue;
      SCOPED_TRACE(testing::Message()
                   << "budget " << budget << ", max_units " << limit);
      PlanOptions options{.granularity = Granularity::kModule,
                          .tradeoff = Tradeoff::kProfile};
      options.budget_bytes = budget;
      options.max_units = limit;
      options.engine = Engine::kLabels;
      const Plan plan = test_support::AskedPlan(profile, tree, options);
      ASSERT_EQ(plan.status, PlanStatus::kOptimal);
      EXPECT_LE(plan.modules.size(), static_cast<size_t>(limit));
      PlanRules rules;
      rules.max_units = limit;
      EXPECT_EQ(FirstBrokenRule(profile, plan, rules), std::nullopt);
      const double slack = 1e-8 * plan.recompute_ms;
      EXPECT_LE(plan.recompute_ms, with_fewer + slack);
      with_fewer = plan.recompute_ms;
      const auto [smaller, is_first] =
          at_smaller_budget.try_emplace(limit, plan.recompute_ms);
      EXPECT_LE(plan.recompute_ms, smaller->second + slack);
      smaller->second = plan.recompute_ms;
      ++solved;
    }
  }
  EXPECT_GT(solved, 60);
}

TEST(MaxUnitsCases, TheBestPlanOutlivesTheLastPass) {
  const Profile& profile = BundledProfile("vit_large");
  const ModuleTree tree(profile);
  PlanOptions options{.granularity = Granularity::kModule,
                      .tradeoff = Tradeoff::kProfile};
  options.budget_bytes = 19'226'423'992;
  options.memory.model = MemoryModel::kSnapshot;
  options.max_units = 8;
  options.engine = Engine::kLabels;
  const Plan labels = test_support::AskedPlan(profile, tree, options);
  EXPECT_EQ(labels.status, PlanStatus::kOptimal);
  options.engine = Engine::kCbc;
  const Plan cbc = test_support::AskedPlan(profile, tree, options);
  EXPECT_EQ(cbc.solver.name, "cbc");
  EXPECT_EQ(cbc.status, PlanStatus::kOptimal);
  EXPECT_NEAR(labels.recompute_ms, cbc.recompute_ms, 1e-5 * cbc.recompute_ms);
}

TEST(MaxUnitsCases, TheBestPlanOutlivesTheLastPassWithFsdpUnits) {
  const Profile& profile = BundledProfile("llama8b");
  PlanOptions options{.granularity = Granularity::kModule,
                      .tradeoff = Tradeoff::kProfile};
  options.budget_bytes = 33'988'096'307;
  options.memory = {.model = MemoryModel::kTorch, .world_size = 4};
  options.max_units = 9;
  options.fsdp_units = {"LlamaForCausalLM.model.layers.28.input_layernorm",
                        "LlamaForCausalLM.model.layers.31.mlp",
                        "LlamaForCausalLM.model.layers.19.self_attn"};
  options.engine = Engine::kLabels;
  const Plan plan =
      test_support::AskedPlan(profile, ModuleTree(profile), options);
  EXPECT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_NEAR(plan.recompute_ms, 45.99, 0.01);
}

}  // namespace
}  // namespace acplan::problems
