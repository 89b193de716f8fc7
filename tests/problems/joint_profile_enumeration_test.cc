#include "tests/problems/joint_profile_enumeration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "graph/profile/module_tree.h"
#include "problems/check/plan_check.h"
#include "tests/problems/joint_profile_case.h"
#include "tests/support/operator_rules.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using test_support::Enough;
using test_support::Repetitions;

// Returns a chain root > block > leaf, the block with two operators.
graph::Profile SmallProfile() {
  graph::Profile profile;
  for (const char* fqn : {"r", "r.b", "r.b.l"}) {
    graph::Module& module = profile.modules.emplace_back();
    module.fqn = fqn;
    module.act_total = profile.modules.size() == 1 ? 100 : 60;
  }
  profile.modules[1].act_fw_per_module = 40;
  profile.modules[2].is_leaf = true;
  profile.modules[1].sac =
      graph::SacStatistics{.func_names = {"mm", "relu", "t"},
                           .runtimes = {3, 1, 0.5},
                           .memory = {30, 20, 0},
                           .view_like_ops = {2},
                           .rand_ops = {},
                           .saved_autograd_ops = {},
                           .inplace_ops = {}};
  profile.order.fw_pre = {"r", "r.b", "r.b.l"};
  profile.order.fw_post = {"r.b.l", "r.b", "r"};
  return profile;
}

TEST(JointProfileEnumeration, OfOneUnitByHand) {
  const JointProfileEnumeration all =
      JointEnumerationOf(SmallProfile(), {.memory = {}});
  // Nothing saved: 40 bytes, 4.5 ms; mm saved: 10, 1.5; relu saved: 20, 3.5.
  ASSERT_EQ(all.units.size(), 1u);
  ASSERT_EQ(all.units[0].policies.size(), 3u);
  EXPECT_EQ(all.LeastBudget(), 60);
  EXPECT_EQ(all.LeastMs(100), 0);
  EXPECT_EQ(all.LeastMs(90), 1.5);
  EXPECT_EQ(all.LeastMs(89), 3.5);
  EXPECT_EQ(all.LeastMs(80), 3.5);
  EXPECT_EQ(all.LeastMs(79), 4.5);
  EXPECT_EQ(all.LeastMs(60), 4.5);
  EXPECT_EQ(all.LeastMs(59), std::nullopt);
  EXPECT_EQ(all.Peak({{0, 10}}), 90);
}

TEST(JointProfileEnumeration, FollowsItsOptions) {
  const graph::Profile profile = SmallProfile();
  EXPECT_TRUE(JointEnumerationOf(profile, {.ac_units = {"r"}}).units.empty());
  EXPECT_TRUE(
      JointEnumerationOf(profile, {.fsdp_units = {"r.b.l"}}).units.empty());
  EXPECT_EQ(JointEnumerationOf(profile, {.max_units = 0}).LeastMs(99),
            std::nullopt);
  const auto with_pattern = JointEnumerationOf(
      profile, {.patterns = {.save = {"m*"}, .recompute = {}}});
  EXPECT_EQ(with_pattern.LeastBudget(), 90);
  EXPECT_TRUE(JointEnumerationOf(profile,
                                 {.patterns = {.save = {"t"}, .recompute = {}}})
                  .units.empty());
}

TEST(JointProfileEnumeration, ChargesHeldBytesInsideAndAfterTheUnit) {
  graph::Profile profile = SmallProfile();
  profile.modules[1].held_per_module = 5;
  for (graph::Module& module : profile.modules) {
    graph::MemorySnapshot peak = {};
    peak[graph::kAct] = peak[graph::kTotal] = module.act_total;
    module.snap = graph::ModuleSnapshots{};
    module.snap->peak_fw = peak;
  }
  const JointProfileEnumeration all = JointEnumerationOf(
      profile, {.memory = {.model = MemoryModel::kSnapshot}});
  EXPECT_EQ(all.units[0].held_bytes, 5);
  EXPECT_EQ(all.Peak({{0, 35}}), 65);
  EXPECT_EQ(all.Peak({{0, 38}}), 65);  // at the block itself
  EXPECT_EQ(all.LeastBudget(), 65);
  EXPECT_EQ(all.LeastMs(95), 1.5);
  EXPECT_EQ(all.LeastMs(94), 3.5);
}

// The code that checks plans confirms the oracle's view of recomputing all of a
// unit, if that is legal.
TEST(JointProfileEnumeration, AgreesWithPlanCheck) {
  int units = 0;
  for (unsigned seed = 0; seed < Repetitions(300) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const JointProfileCase c(seed);
    for (size_t u = 0; u < c.all.units.size(); ++u) {
      const auto& unit = c.all.units[u];
      const graph::Module& module =
          *std::ranges::find(c.profile.modules, unit.fqn, &graph::Module::fqn);
      const graph::SacStatistics& sac = *module.sac;
      PlannedModule planned_unit;
      planned_unit.fqn = unit.fqn;
      double ms = 0;
      for (size_t k = 0; k < sac.memory.size(); ++k) {
        planned_unit.ops.push_back({.index = static_cast<int>(k),
                                    .name = sac.func_names[k],
                                    .decision = graph::SaveOrRecompute(false)});
        ms += sac.runtimes[k];
      }
      if (!test_support::KeepsRules(
              sac, c.options.patterns,
              std::vector<char>(planned_unit.ops.size(), 0))) {
        continue;
      }
      ++units;
      const PlanEffect effect =
          ComputeEffect(c.profile, {planned_unit}, c.options.memory);
      EXPECT_DOUBLE_EQ(effect.recompute_ms, ms);
      EXPECT_NEAR(
          static_cast<double>(effect.peak_bytes),
          c.all.Peak({{static_cast<int>(u), unit.policies.back().bytes}}), 1.1);
    }
  }
  EXPECT_GT(units, Enough(100));
}

TEST(JointProfileCases, HaveEverything) {
  int feasible_with_units = 0;
  int held_count = 0;
  int patterns = 0;
  int several_units = 0;
  int many_policies = 0;
  int limited = 0;
  int unmatched = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    const JointProfileCase c(seed);
    feasible_with_units += c.all.LeastMs(c.between).value_or(0) > 0;
    patterns += !c.options.patterns.empty();
    several_units += c.all.units.size() > 2;
    limited += c.options.max_units && c.all.units.size() > 1;
    unmatched += !graph::ModuleTree(c.profile).PostOrderMatchesTree();
    for (const auto& unit : c.all.units) {
      held_count += unit.held_bytes > 0;
      many_policies += unit.policies.size() > 4;
    }
    EXPECT_EQ(c.all.LeastMs(c.least_budget - 1), std::nullopt);
    EXPECT_NE(c.all.LeastMs(c.least_budget), std::nullopt);
  }
  EXPECT_GT(feasible_with_units, 150);
  EXPECT_GT(held_count, 50);
  EXPECT_GT(patterns, 60);
  EXPECT_GT(several_units, 100);
  EXPECT_GT(many_policies, 200);
  EXPECT_GT(limited, 50);
  EXPECT_GT(unmatched, 10);
}

}  // namespace
}  // namespace acplan::problems
