#include "problems/budget_frontier.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <string>

#include "graph/profile/module_tree.h"
#include "tests/support/reference_data.h"
#include "tests/support/repetitions.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using graph::ModuleTree;
using graph::Profile;
using solver::SearchLimits;
using test_support::Enough;
using test_support::Repetitions;
using testing::ElementsAre;
using testing::IsEmpty;
using testing::Not;
using testing::SizeIs;

TEST(EvenBudgets, HaveBothEnds) {
  EXPECT_THAT(EvenBudgets(10, 20, 2), ElementsAre(10, 20));
  EXPECT_THAT(EvenBudgets(10, 20, 3), ElementsAre(10, 15, 20));
  EXPECT_THAT(EvenBudgets(10, 20, 4), ElementsAre(10, 13, 16, 20));
}

TEST(EvenBudgets, OnePointIsTheLeast) {
  EXPECT_THAT(EvenBudgets(10, 20, 1), ElementsAre(10));
}

TEST(EvenBudgets, AreDistinct) {
  EXPECT_THAT(EvenBudgets(5, 8, 100), ElementsAre(5, 6, 7, 8));
  EXPECT_THAT(EvenBudgets(7, 7, 1), ElementsAre(7));
  EXPECT_THAT(EvenBudgets(7, 7, 20), ElementsAre(7));
}

TEST(EvenBudgets, OfLargeSizes) {
  constexpr int64_t kMost = int64_t{1} << 62;
  EXPECT_THAT(EvenBudgets(kMost - 2, kMost, 3),
              ElementsAre(kMost - 2, kMost - 1, kMost));
  const std::vector<int64_t> budgets = EvenBudgets(1, kMost, 1001);
  EXPECT_THAT(budgets, SizeIs(1001));
  EXPECT_EQ(budgets.front(), 1);
  EXPECT_EQ(budgets.back(), kMost);
  EXPECT_TRUE(std::ranges::is_sorted(budgets));
}

// A question together with its profile.
struct FrontierCase {
  Profile profile;
  ModuleTree tree;
  PlanningProblem problem;
  int64_t least = 0;
  int64_t most = 0;

  FrontierCase(const Profile& source, PlanOptions options)
      : profile(source), tree(profile) {
    options.memory.model = DefaultMemoryModel(profile);
    problem = BuildPlanningProblem(profile, tree, options);
    const MinimumBudget minimum = LeastPlan(problem, {}).budget;
    EXPECT_TRUE(minimum.proven);
    least = minimum.bytes;
    most =
        std::max(least, problem.unplanned_peak_bytes + options.reserve_bytes);
  }
  FrontierCase(const FrontierCase&) = delete;
  FrontierCase& operator=(const FrontierCase&) = delete;

  std::vector<int64_t> Budgets(int points) const {
    return EvenBudgets(least, most, points);
  }
};

SearchLimits WithTime(double seconds) {
  SearchLimits limits;
  limits.time_limit_s = seconds;
  return limits;
}

SearchLimits WithNodes(int64_t nodes) {
  SearchLimits limits;
  limits.node_limit = nodes;
  return limits;
}

SearchLimits WithGap(double gap) {
  SearchLimits limits;
  limits.gap = gap;
  return limits;
}

SearchLimits UntilSet(const std::atomic<bool>& interrupted) {
  SearchLimits limits;
  limits.interrupted = &interrupted;
  return limits;
}

void ExpectMonotone(const std::vector<Plan>& plans) {
  for (size_t k = 1; k < plans.size(); ++k) {
    EXPECT_LT(plans[k - 1].budget_bytes, plans[k].budget_bytes);
    if (!plans[k - 1].HasPlan()) continue;
    ASSERT_TRUE(plans[k].HasPlan());
    EXPECT_LE(plans[k].recompute_ms, plans[k - 1].recompute_ms);
  }
}

// Expects, for budgets from the minimum to the peak, the plans of separate
// searches.
void ExpectEqualsPlansAlone(const FrontierCase& question, int points) {
  const std::vector<int64_t> budgets = question.Budgets(points);
  size_t calls = 0;
  const std::vector<Plan> plans =
      PlanFrontier(question.problem, budgets, {},
                   [&](size_t count) { EXPECT_EQ(count, ++calls); });
  ASSERT_EQ(plans.size(), budgets.size());
  EXPECT_EQ(calls, plans.size());
  for (size_t k = 0; k < plans.size(); ++k) {
    SCOPED_TRACE(budgets[k]);
    EXPECT_EQ(plans[k].budget_bytes, budgets[k]);
    EXPECT_EQ(plans[k].status, PlanStatus::kOptimal);
    EXPECT_LE(plans[k].peak_bytes, budgets[k]);
    const Plan alone = PlanFor(question.problem, budgets[k], {}).plan;
    EXPECT_EQ(alone.status, PlanStatus::kOptimal);
    const double tolerance = alone.solver.name == "cbc" ? 1e-5 : 1e-8;
    EXPECT_NEAR(plans[k].recompute_ms, alone.recompute_ms,
                tolerance * std::max(1e-6, alone.recompute_ms));
  }
  ExpectMonotone(plans);
  if (question.least < question.most) {
    EXPECT_THAT(plans.front().modules, Not(IsEmpty()));
  }
  EXPECT_EQ(plans.back().recompute_ms, 0);
  EXPECT_THAT(plans.back().modules, IsEmpty());
}

// The plan for the least budget also answers larger budgets for which no time remains, except
// budgets that need no plan.
TEST(BudgetFrontier, WithoutTimeKnownPlansAreForLargerBudgetsToo) {
  const FrontierCase question(test_support::BundledProfile("transformer4"), {});
  const std::vector<int64_t> budgets = question.Budgets(6);
  std::atomic<bool> interrupted = false;
  const std::vector<Plan> plans =
      PlanFrontier(question.problem, budgets, UntilSet(interrupted),
                   [&](size_t) { interrupted = true; });
  ASSERT_EQ(plans.size(), budgets.size());
  ASSERT_TRUE(plans.front().HasPlan());
  for (size_t k = 1; k + 1 < plans.size(); ++k) {
    EXPECT_EQ(plans[k].budget_bytes, budgets[k]);
    EXPECT_EQ(plans[k].status, PlanStatus::kFeasible);
    EXPECT_EQ(plans[k].limit, "interrupted");
    EXPECT_EQ(plans[k].modules.size(), plans.front().modules.size());
    EXPECT_EQ(plans[k].recompute_ms, plans.front().recompute_ms);
    EXPECT_EQ(plans[k].bound_ms, 0);
  }
  EXPECT_EQ(plans.back().recompute_ms, 0);
  EXPECT_THAT(plans.back().modules, IsEmpty());
}

class BundledFrontier : public testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Profiles, BundledFrontier,
                         testing::Values("transformer4", "gpt2_small",
                                         "llama8b", "resnet50"),
                         [](const auto& name) { return name.param; });

TEST_P(BundledFrontier, EqualsPlansAlone) {
  for (const Granularity granularity :
       {Granularity::kOperator, Granularity::kModule}) {
    SCOPED_TRACE(ToString(granularity));
    ExpectEqualsPlansAlone(
        FrontierCase(test_support::BundledProfile(GetParam()),
                     {.granularity = granularity}),
        5);
  }
}

TEST_P(BundledFrontier, OperatorsRecomputeNoLessThanMixturesOfPolicies) {
  const Profile& profile = test_support::BundledProfile(GetParam());
  const FrontierCase operators(profile, {});
  const FrontierCase modules(profile, {.granularity = Granularity::kModule});
  EXPECT_EQ(operators.least, modules.least);
  EXPECT_EQ(operators.most, modules.most);
  const auto by_operators =
      PlanFrontier(operators.problem, operators.Budgets(4), {});
  const auto by_modules = PlanFrontier(modules.problem, modules.Budgets(4), {});
  ASSERT_EQ(by_operators.size(), by_modules.size());
  for (size_t k = 0; k < by_operators.size(); ++k) {
    EXPECT_GE(by_operators[k].recompute_ms * (1 + 1e-8),
              by_modules[k].recompute_ms);
  }
}

TEST(BudgetFrontier, EqualsPlansAloneOnRandomProfiles) {
  int with_units = 0;
  int with_cbc = 0;
  for (unsigned seed = 0; seed < Repetitions(200); ++seed) {
    SCOPED_TRACE(seed);
    const Profile profile = test_support::RandomProfile(
        seed, {.unmatched_post_order = 0.3, .most_operators = 8});
    for (const Granularity granularity :
         {Granularity::kOperator, Granularity::kModule}) {
      SCOPED_TRACE(ToString(granularity));
      const FrontierCase question(
          profile, {.granularity = granularity,
                    .reserve_bytes = static_cast<int64_t>(seed % 3 * 100)});
      with_units += question.least < question.most;
      with_cbc += !question.tree.PostOrderMatchesTree();
      ExpectEqualsPlansAlone(question, 4);
    }
  }
  EXPECT_GT(with_units, Enough(60));
  EXPECT_GT(with_cbc, Enough(10));
}

// Stopped as soon as it has a plan for the least budget.
TEST_P(BundledFrontier, NeverGetsWorseWhenInterrupted) {
  for (const auto& [granularity, engine] :
       {std::pair(Granularity::kOperator, Engine::kLabels),
        std::pair(Granularity::kModule, Engine::kLabels),
        std::pair(Granularity::kModule, Engine::kCbc)}) {
    if (engine == Engine::kCbc && GetParam() != "transformer4") continue;
    SCOPED_TRACE(ToString(granularity));
    SCOPED_TRACE(ToString(engine));
    const FrontierCase question(test_support::BundledProfile(GetParam()),
                                {.granularity = granularity, .engine = engine});
    std::atomic<bool> interrupted = false;
    const std::vector<Plan> plans = PlanFrontier(
        question.problem, question.Budgets(6), UntilSet(interrupted),
        [&](size_t) { interrupted = true; });
    ASSERT_THAT(plans, SizeIs(6));
    EXPECT_EQ(plans.front().status, PlanStatus::kOptimal);
    for (size_t k = 1; k + 1 < plans.size(); ++k) {
      EXPECT_TRUE(plans[k].HasPlan());
      if (plans[k].status == PlanStatus::kFeasible) {
        EXPECT_EQ(plans[k].limit, "interrupted");
        EXPECT_LE(plans[k].bound_ms, plans[k].recompute_ms);
      }
    }
    EXPECT_EQ(plans[1].status, PlanStatus::kFeasible);
    EXPECT_EQ(plans.back().status, PlanStatus::kOptimal);
    ExpectMonotone(plans);
  }
}

TEST_P(BundledFrontier, NeverGetsWorseUnderLimits) {
  const FrontierCase question(test_support::BundledProfile(GetParam()), {});
  for (const SearchLimits& limits :
       {WithTime(0), WithNodes(0), WithNodes(300), WithGap(0.5)}) {
    const std::vector<Plan> plans =
        PlanFrontier(question.problem, question.Budgets(6), limits);
    ASSERT_THAT(plans, SizeIs(6));
    ExpectMonotone(plans);
    // A budget that needs no plan needs no time.
    EXPECT_EQ(plans.back().status, PlanStatus::kOptimal);
  }
}

TEST(BudgetFrontier, NeverGetsWorseUnderLimitsOnRandomProfiles) {
  int stopped = 0;
  for (unsigned seed = 0; seed < Repetitions(100); ++seed) {
    SCOPED_TRACE(seed);
    const Profile profile = test_support::RandomProfile(
        seed, {.unmatched_post_order = 0.3, .most_operators = 8});
    const FrontierCase question(profile, {});
    std::atomic<bool> interrupted = false;
    for (const SearchLimits& limits :
         {WithTime(0), WithNodes(0), UntilSet(interrupted)}) {
      interrupted = false;
      const std::vector<Plan> plans =
          PlanFrontier(question.problem, question.Budgets(5), limits,
                       [&](size_t) { interrupted = true; });
      for (const Plan& plan : plans) {
        stopped += plan.status == PlanStatus::kFeasible;
      }
      ExpectMonotone(plans);
      EXPECT_EQ(plans.back().status, PlanStatus::kOptimal);
    }
  }
  EXPECT_GT(stopped, Enough(20));
}

TEST(BudgetFrontier, TellsTheMinimumBelowIt) {
  const FrontierCase question(test_support::BundledProfile("gpt2_small"),
                              {.reserve_bytes = 1'000'000});
  const std::vector<Plan> plans = PlanFrontier(
      question.problem,
      {question.least, question.least - 1, question.least / 2}, {});
  ASSERT_THAT(plans, SizeIs(3));
  for (size_t k = 0; k < 2; ++k) {
    EXPECT_EQ(plans[k].status, PlanStatus::kInfeasible);
    EXPECT_EQ(plans[k].minimum_budget_bytes, question.least);
    EXPECT_THAT(plans[k].modules, IsEmpty());
  }
  EXPECT_EQ(plans[2].status, PlanStatus::kOptimal);
  EXPECT_EQ(plans[2].peak_bytes, question.least - 1'000'000);
}

TEST(BudgetFrontier, SortsBudgetsAndTakesEachOnce) {
  const FrontierCase question(test_support::BundledProfile("transformer4"), {});
  const int64_t middle = (question.least + question.most) / 2;
  const std::vector<Plan> plans = PlanFrontier(
      question.problem,
      {question.most, middle, question.least, middle, question.most}, {});
  ASSERT_THAT(plans, SizeIs(3));
  EXPECT_EQ(plans[0].budget_bytes, question.least);
  EXPECT_EQ(plans[1].budget_bytes, middle);
  EXPECT_EQ(plans[2].budget_bytes, question.most);
  ExpectMonotone(plans);
  EXPECT_THAT(PlanFrontier(question.problem, {}, {}), IsEmpty());
}

}  // namespace
}  // namespace acplan::problems
