#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <random>
#include <stdexcept>
#include <string>

#include "graph/profile/module_tree.h"
#include "problems/engines/labels/module_labels.h"
#include "problems/engines/milp/module_milp.h"
#include "problems/engines/minimum_budget.h"
#include "problems/model/module_solution.h"
#include "problems/planner.h"
#include "tests/problems/abstract_problem.h"
#include "tests/problems/enumeration.h"
#include "tests/support/asked_plan.h"
#include "tests/support/repetitions.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using solver::SearchLimits;
using solver::SearchStatus;
using solver::StoppedBy;
using test_support::Enough;
using test_support::Repetitions;

void ExpectBest(const ModuleProblem& problem, const ModuleSolution& solution,
                double tolerance) {
  const std::optional<double> least =
      EnumerationOf(problem).LeastMs(problem.budget_bytes);
  if (!least) {
    EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
    return;
  }
  ASSERT_EQ(solution.status, SearchStatus::kOptimal);
  EXPECT_NEAR(solution.ms, *least, tolerance * std::max(1.0, *least));
  EXPECT_NEAR(SolutionCost(problem, solution.units), solution.ms, 1e-9);
  EXPECT_LE(SolutionPeak(problem, solution.units), problem.budget_bytes + 1e-6);
}

TEST(Labels, FindTheBestOfAllSets) {
  std::mt19937 random(1);
  for (int round = 0; round < Repetitions(4000); ++round) {
    SCOPED_TRACE(round);
    const ModuleProblem problem = RandomModuleProblem(random);
    ExpectBest(problem, SolveByLabels(problem), 1e-8);
    if (HasFailure()) break;
  }
}

TEST(Milp, FindsTheBestOfAllSets) {
  std::mt19937 random(2);
  for (int round = 0; round < Repetitions(400); ++round) {
    SCOPED_TRACE(round);
    const ModuleProblem problem =
        RandomModuleProblem(random, {.prefix_structure = round % 2 == 0});
    ExpectBest(problem, SolveByCbc(problem), 1e-6);
    if (HasFailure()) break;
  }
}

TEST(Labels, RefuseProblemsWithoutPrefixStructure) {
  std::mt19937 random(3);
  EXPECT_THROW(
      SolveByLabels(RandomModuleProblem(random, {.prefix_structure = false})),
      std::invalid_argument);
}

TEST(MinimumBudget, IsTheLeastOfAllSets) {
  std::mt19937 random(4);
  for (int round = 0; round < Repetitions(1500); ++round) {
    SCOPED_TRACE(round);
    const ModuleProblem problem =
        RandomModuleProblem(random, {.prefix_structure = round % 10 != 0});
    const MinimumBudget least = FindMinimumBudget(problem);
    EXPECT_TRUE(least.proven);
    EXPECT_EQ(least.bytes, static_cast<int64_t>(std::ceil(
                               EnumerationOf(problem).LeastBudget() - 1e-9)));
    if (HasFailure()) break;
  }
}

// Leaving records out does not change the optimum.
TEST(BindingRecords, ImplyTheOthers) {
  std::mt19937 random(5);
  int left_out = 0;
  for (int round = 0; round < Repetitions(2000); ++round) {
    SCOPED_TRACE(round);
    const ModuleProblem problem =
        RandomModuleProblem(random, {.prefix_structure = round % 2 == 0});
    const std::vector<int> kept_records = BindingRecords(problem);
    Enumeration all = EnumerationOf(problem);
    Enumeration few = all;
    for (auto& record : few.records) {
      const bool is_kept = std::ranges::any_of(kept_records, [&](int node) {
        return problem.nodes[node].time == record.time;
      });
      if (!is_kept) record.bytes = 0;
    }
    left_out += kept_records.size() < all.records.size();
    const std::optional<double> least = all.LeastMs(problem.budget_bytes);
    const std::optional<double> least_of_few =
        few.LeastMs(problem.budget_bytes);
    ASSERT_EQ(least.has_value(), least_of_few.has_value());
    EXPECT_NEAR(least.value_or(0), least_of_few.value_or(0), 1e-9);
    if (HasFailure()) break;
  }
  EXPECT_GT(left_out, Enough(1000));
}

TEST(BindingRecords, AreFewInARealModel) {
  const graph::Profile profile = test_support::SyntheticGpt(12);
  const graph::ModuleTree tree(profile);
  ModuleProblemOptions options;
  options.budget_bytes = 9e9;
  const BuiltModuleProblem built_problem =
      BuildModuleProblem(profile, tree, options);
  EXPECT_LT(BindingRecords(built_problem.problem).size(), 40u);
  EXPECT_EQ(MemoryRecords(profile, tree, {}).size(), 160u);
}

struct SyntheticCase {
  graph::Profile profile = test_support::SyntheticGpt(8, 0.1);
  graph::ModuleTree tree{profile};
  PlanOptions options{.granularity = Granularity::kModule,
                      .tradeoff = Tradeoff::kProfile};
  double optimum;

  explicit SyntheticCase(Engine engine) {
    options.engine = engine;
    const double most = PeakOf(profile, {}, {});
    options.budget_bytes = std::llround(0.6 * most);
    optimum = Plan().recompute_ms;
  }
  problems::Plan Plan() const {
    return test_support::AskedPlan(profile, tree, options);
  }
};

void ExpectBoundsAround(const Plan& plan, double optimum) {
  EXPECT_LE(plan.bound_ms, optimum * (1 + 1e-6));
  if (plan.HasPlan()) {
    EXPECT_GE(plan.recompute_ms, optimum * (1 - 1e-6));
    EXPECT_NEAR(plan.gap,
                (plan.recompute_ms - plan.bound_ms) / plan.recompute_ms, 1e-12);
  } else {
    EXPECT_EQ(plan.status, PlanStatus::kNoPlan);
    EXPECT_TRUE(plan.modules.empty());
  }
}

class Limits : public ::testing::TestWithParam<Engine> {};
std::string EngineName(const ::testing::TestParamInfo<Engine>& engine) {
  return std::string(ToString(engine.param));
}
INSTANTIATE_TEST_SUITE_P(Engines, Limits,
                         ::testing::Values(Engine::kLabels, Engine::kCbc),
                         EngineName);

TEST_P(Limits, TheSearchEndsWithoutThem) {
  const SyntheticCase c(GetParam());
  EXPECT_GT(c.optimum, 1);
  EXPECT_EQ(c.Plan().status, PlanStatus::kOptimal);
  EXPECT_EQ(c.Plan().limit, std::nullopt);
}

TEST_P(Limits, NoTime) {
  SyntheticCase c(GetParam());
  c.options.limits.time_limit_s = 0;
  const Plan plan = c.Plan();
  EXPECT_NE(plan.status, PlanStatus::kOptimal);
  EXPECT_EQ(plan.limit, "time");
  ExpectBoundsAround(plan, c.optimum);
}

TEST_P(Limits, Interrupted) {
  SyntheticCase c(GetParam());
  const std::atomic<bool> interrupted = true;
  c.options.limits.interrupted = &interrupted;
  const Plan plan = c.Plan();
  EXPECT_NE(plan.status, PlanStatus::kOptimal);
  EXPECT_EQ(plan.limit, "interrupted");
  ExpectBoundsAround(plan, c.optimum);
}

TEST_P(Limits, OneNode) {
  SyntheticCase c(GetParam());
  c.options.limits.node_limit = 1;
  const Plan plan = c.Plan();
  if (plan.status != PlanStatus::kOptimal) {
    EXPECT_EQ(plan.limit, "nodes");
  }
  ExpectBoundsAround(plan, c.optimum);
}

TEST_P(Limits, AWideGap) {
  SyntheticCase c(GetParam());
  c.options.limits.gap = 0.5;
  const Plan plan = c.Plan();
  ASSERT_TRUE(plan.HasPlan());
  EXPECT_LE(plan.gap, 0.5);
  if (plan.status == PlanStatus::kFeasible) {
    EXPECT_EQ(plan.limit, "gap");
  }
  ExpectBoundsAround(plan, c.optimum);
}

TEST_P(Limits, EqualCallsGiveEqualPlans) {
  const SyntheticCase c(GetParam());
  const Plan first = c.Plan();
  const Plan second = c.Plan();
  EXPECT_EQ(first.modules, second.modules);
  EXPECT_EQ(first.recompute_ms, second.recompute_ms);
  EXPECT_EQ(first.solver.nodes, second.solver.nodes);
}

TEST(Engines, AgreeOnSyntheticModels) {
  EXPECT_NEAR(SyntheticCase(Engine::kLabels).optimum,
              SyntheticCase(Engine::kCbc).optimum, 1e-5);
}

TEST(CheapestBytes, AreNoneWhereTheUnitsAreTooFew) {
  ModuleProblem problem;
  problem.nodes.resize(2);
  problem.nodes[0] = {
      .subtree_size = 1, .time = 0, .base_bytes = 5, .curve = {{0, 0}, {4, 1}}};
  problem.nodes[1] = {
      .subtree_size = 1, .time = 1, .base_bytes = 10, .curve = {}};
  problem.budget_bytes = 7;
  EXPECT_EQ(CheapestBytes(problem, {}), std::nullopt);
  const auto units = CheapestBytes(problem, {0});
  ASSERT_TRUE(units);
  EXPECT_NEAR(units->at(0).net_bytes, 3, 1e-9);
  problem.fixed_bytes = 8;
  EXPECT_EQ(CheapestBytes(problem, {0}), std::nullopt);
}

TEST(WithoutNeedlessUnits, LeavesOutTheDearestFirst) {
  ModuleProblem problem;
  problem.nodes.resize(3);
  problem.nodes[0] = {.time = 0, .base_bytes = 5, .curve = {{0, 0}, {4, 1}}};
  problem.nodes[1] = {.time = 1, .base_bytes = 5, .curve = {{0, 0}, {4, 2}}};
  problem.nodes[2] = {.time = 2, .base_bytes = 10, .curve = {}};
  problem.budget_bytes = 6;
  const auto units = WithoutNeedlessUnits(problem, {{0, 4}, {1, 4}});
  ASSERT_EQ(units.size(), 1u);
  EXPECT_EQ(units[0].node, 0);
}

}  // namespace
}  // namespace acplan::problems
