#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>

#include "graph/profile/module_tree.h"
#include "problems/planner.h"
#include "solver/cbc_solver.h"
#include "tests/problems/enumeration.h"
#include "tests/support/asked_plan.h"
#include "tests/support/literal_sac_milp.h"
#include "tests/support/repetitions.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using graph::ModuleTree;
using graph::Profile;
using solver::MilpSolution;
using solver::MilpStatus;
using test_support::BuildLiteralSacMilp;
using test_support::Enough;
using test_support::RandomProfile;
using test_support::Repetitions;

Plan LiteralPlanAt(const Profile& profile, int64_t budget_bytes,
                   int world_size) {
  PlanOptions options{.granularity = Granularity::kModule,
                      .tradeoff = Tradeoff::kProfile};
  options.budget_bytes = budget_bytes;
  options.memory.world_size = world_size;
  return test_support::AskedPlan(profile, ModuleTree(profile), options);
}

MilpSolution SolveLiteral(const Profile& profile, int64_t budget_bytes,
                          int world_size) {
  return solver::SolveWithCbc(
      BuildLiteralSacMilp(profile, ModuleTree(profile),
                          static_cast<double>(budget_bytes), world_size));
}

// Returns a budget between the least that can be met and the baseline.
int64_t BudgetWithin(const Profile& profile, const MemoryOptions& memory,
                     double share) {
  const double least = EnumerationOf(profile, {.memory = memory}).LeastBudget();
  const double most = PeakOf(profile, {}, memory);
  return std::llround(least + share * (most - least)) + 1;
}

TEST(LiteralForm, AgreesWhereItIsValid) {
  int with_units = 0;
  for (unsigned seed = 0; seed < Repetitions(120); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Profile profile =
        RandomProfile(seed, {.most_modules = 8, .for_literal_form = true});
    const int world_size = 1 << seed % 4;
    const int64_t budget = BudgetWithin(profile, {.world_size = world_size},
                                        0.1 + seed % 10 / 12.0);
    const Plan plan = LiteralPlanAt(profile, budget, world_size);
    const MilpSolution literal = SolveLiteral(profile, budget, world_size);
    ASSERT_EQ(plan.status, PlanStatus::kOptimal);
    ASSERT_EQ(literal.status, MilpStatus::kOptimal);
    EXPECT_NEAR(plan.recompute_ms, literal.objective,
                1e-4 * std::max(1.0, plan.recompute_ms));
    with_units += !plan.modules.empty();
  }
  EXPECT_GT(with_units, Enough(40));
}

TEST(LiteralForm, AgreesThatABudgetIsTooSmall) {
  for (unsigned seed = 0; seed < Repetitions(40); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Profile profile =
        RandomProfile(seed, {.most_modules = 8, .for_literal_form = true});
    const int64_t budget = BudgetWithin(profile, {}, 0) * 99 / 100;
    EXPECT_EQ(LiteralPlanAt(profile, budget, 1).status,
              PlanStatus::kInfeasible);
    EXPECT_EQ(SolveLiteral(profile, budget, 1).status, MilpStatus::kInfeasible);
  }
}

Profile SlowGpt(double factor) {
  Profile profile = test_support::SyntheticGpt(2);
  for (graph::Module& module : profile.modules) {
    if (module.torch_fit) module.torch_fit->sac_runtime *= factor;
  }
  return profile;
}

// Every unit needs more than its big-M.
TEST(LiteralForm, RulesOutUnitsOfMoreThan100Ms) {
  const Profile fast = SlowGpt(1);
  const int64_t budget = BudgetWithin(fast, {}, 0.02);
  const double ms = LiteralPlanAt(fast, budget, 1).recompute_ms;
  EXPECT_NEAR(SolveLiteral(fast, budget, 1).objective, ms, 1e-4 * ms);

  const Profile slow = SlowGpt(300);
  const Plan plan = LiteralPlanAt(slow, budget, 1);
  EXPECT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_NEAR(plan.recompute_ms, 300 * ms, 1e-6 * 300 * ms);
  EXPECT_EQ(SolveLiteral(slow, budget, 1).status, MilpStatus::kInfeasible);
}

// ACT times an intercept is above the big-M: rct >= ACT rcp - M cannot hold for
// a module that is no unit.
TEST(LiteralForm, AnInterceptAloneMakesItInfeasible) {
  Profile profile = test_support::SyntheticGpt(1);
  for (graph::Module& module : profile.modules) {
    if (module.fqn != "GPT.h.0.mlp") continue;
    for (auto& intercept : module.torch_fit->intercepts) *intercept += 50;
  }
  const int64_t roomy =
      static_cast<int64_t>(PeakOf(profile, {}, {})) + (1 << 20);
  const Plan plan = LiteralPlanAt(profile, roomy, 1);
  EXPECT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_EQ(plan.recompute_ms, 0);
  EXPECT_EQ(SolveLiteral(profile, roomy, 1).status, MilpStatus::kInfeasible);
}

TEST(LiteralForm, ItsRelaxationBoundsNothing) {
  const Profile profile = test_support::SyntheticGpt(2);
  const ModuleTree tree(profile);
  const int64_t budget = BudgetWithin(profile, {}, 0.3);
  solver::Milp relaxed =
      BuildLiteralSacMilp(profile, tree, static_cast<double>(budget));
  for (solver::Milp::Column& column : relaxed.columns) {
    column.is_integer = false;
  }
  EXPECT_NEAR(solver::SolveWithCbc(relaxed).objective, 0, 1e-6);
  EXPECT_GT(LiteralPlanAt(profile, budget, 1).recompute_ms, 1);
}

TEST(LiteralForm, HasAColumnForEveryVariableOfEveryModule) {
  const Profile profile = test_support::SyntheticGpt(12);
  const ModuleTree tree(profile);
  EXPECT_EQ(tree.size(), 160);
  const solver::Milp milp = BuildLiteralSacMilp(profile, tree, 1e10);
  EXPECT_EQ(static_cast<int>(milp.columns.size()),
            test_support::kLiteralVariables * tree.size() + 1);
  EXPECT_EQ(milp.columns[test_support::kRct * tree.size()].name, "rct_0");
  EXPECT_EQ(milp.columns.back().name, "max_m");
}

TEST(LiteralForm, ObeysRestrictions) {
  const Profile profile = test_support::SyntheticGpt(2);
  const ModuleTree tree(profile);
  const std::vector<std::string> ac_units = {"GPT.h.0.mlp", "GPT.h.1",
                                             "GPT.h.1.attn"};
  const std::vector<std::string> fsdp_units = {"GPT.h.1.mlp"};
  const EnumerationOptions restricted = {.ac_units = ac_units,
                                         .fsdp_units = fsdp_units};
  const double least = EnumerationOf(profile, restricted).LeastBudget();
  PlanOptions options{.granularity = Granularity::kModule,
                      .tradeoff = Tradeoff::kProfile};
  options.budget_bytes = static_cast<int64_t>(least * 1.01);
  options.ac_units = ac_units;
  options.fsdp_units = fsdp_units;
  const Plan plan = test_support::AskedPlan(profile, tree, options);
  const MilpSolution literal = solver::SolveWithCbc(BuildLiteralSacMilp(
      profile, tree, static_cast<double>(options.budget_bytes), 1, ac_units,
      fsdp_units));
  EXPECT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_FALSE(plan.modules.empty());
  EXPECT_NEAR(literal.objective, plan.recompute_ms, 1e-4 * plan.recompute_ms);
}

}  // namespace
}  // namespace acplan::problems
