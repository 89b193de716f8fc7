#include "tests/support/two_stage.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "graph/profile/module_tree.h"
#include "problems/check/plan_check.h"
#include "problems/planner.h"
#include "tests/support/asked_plan.h"
#include "tests/support/reference_data.h"

namespace acplan::problems {
namespace {

using graph::ModuleTree;
using graph::Profile;
using test_support::BundledProfile;
using test_support::TorchPlan;
using test_support::TwoStageOutcome;

std::vector<std::string> BundledNames() {
  std::vector<std::string> names;
  for (const auto& baseline : test_support::TorchBaselines()) {
    names.push_back(baseline.profile);
  }
  return names;
}

class TwoStages
    : public ::testing::TestWithParam<std::tuple<std::string, MemoryModel>> {};
INSTANTIATE_TEST_SUITE_P(
    All, TwoStages,
    ::testing::Combine(::testing::ValuesIn(BundledNames()),
                       ::testing::Values(MemoryModel::kTorch,
                                         MemoryModel::kSnapshot)),
    [](const auto& test) {
      return std::get<0>(test.param) + "_" +
             std::string(ToString(std::get<1>(test.param)));
    });

TEST_P(TwoStages, AreNeverBetterThanUnitsAndOperatorsTogether) {
  const auto& [name, model] = GetParam();
  const Profile& profile = BundledProfile(name);
  const ModuleTree tree(profile);
  const MemoryOptions memory = {.model = model};
  const PlanningProblem problem =
      BuildPlanningProblem(profile, tree, {.memory = memory});
  const MinimumBudget least = LeastPlan(problem, {}).budget;
  ASSERT_TRUE(least.proven);
  const auto range =
      static_cast<double>(problem.unplanned_peak_bytes - least.bytes);
  int compared = 0;
  double with_less = std::numeric_limits<double>::infinity();
  for (const int percent : {5, 10, 20, 30, 40, 50, 60, 70, 80, 90, 95, 100}) {
    SCOPED_TRACE(percent);
    const int64_t budget = least.bytes + std::llround(range * percent / 100);
    const Plan joint = PlanFor(problem, budget, {}).plan;
    ASSERT_EQ(joint.status, PlanStatus::kOptimal);
    EXPECT_EQ(joint.gap, 0);
    EXPECT_EQ(FirstBrokenRule(profile, joint), std::nullopt);
    EXPECT_LE(joint.recompute_ms, with_less * (1 + 1e-9));
    with_less = joint.recompute_ms;

    const test_support::TwoStagePlan two =
        test_support::PlanInTwoStages(profile, tree, memory, budget);
    if (two.outcome != TwoStageOutcome::kFits) continue;
    EXPECT_LE(joint.recompute_ms, two.plan.recompute_ms * (1 + 1e-9));
    ++compared;
  }
  EXPECT_EQ(with_less, 0);
  EXPECT_GE(compared, 2);
}

// Returns the plans with operators for every unit.
std::vector<TorchPlan> PlansWithOperators() {
  std::vector<TorchPlan> plans = test_support::TorchPlans();
  std::erase_if(plans, [](const TorchPlan& plan) {
    return std::ranges::any_of(
        plan.unnamed_units, [](const auto& unit) { return unit.ops.empty(); });
  });
  return plans;
}

class TorchsOperators : public ::testing::TestWithParam<TorchPlan> {};
INSTANTIATE_TEST_SUITE_P(All, TorchsOperators,
                         ::testing::ValuesIn(PlansWithOperators()),
                         [](const auto& test) {
                           return test.param.profile + "_" + test.param.label;
                         });

TEST(TorchsOperatorsFile, HasAllButOneModel) {
  EXPECT_EQ(PlansWithOperators().size(), 21u);
}

// At the plan's budget or, if its operators exceed that, at the bytes that they
// need.
TEST_P(TorchsOperators, AreNeverBetter) {
  const TorchPlan& torch = GetParam();
  const Profile& profile = BundledProfile(torch.profile);
  const MemoryOptions memory = {.model = MemoryModel::kTorch};
  const PlanEffect effect =
      ComputeEffect(profile, test_support::UnitsOf(torch), memory);
  const int64_t budget = std::max(torch.budget_bytes, effect.peak_bytes);
  const Plan joint = test_support::AskedPlan(
      profile, ModuleTree(profile), {.budget_bytes = budget, .memory = memory});
  EXPECT_EQ(joint.status, PlanStatus::kOptimal);
  EXPECT_EQ(FirstBrokenRule(profile, joint), std::nullopt);
  EXPECT_LE(joint.recompute_ms, effect.recompute_ms * (1 + 1e-9));
}

}  // namespace
}  // namespace acplan::problems
