#include "problems/ask.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "graph/trace/aggregate.h"
#include "tests/support/random_step.h"
#include "tests/support/reference_data.h"
#include "tests/support/repetitions.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using test_support::Enough;
using test_support::Repetitions;

// A trace, its profile and the question about it.
struct TraceQuestion {
  graph::Trace trace;
  graph::Profile profile;
  graph::ModuleTree tree;

  explicit TraceQuestion(unsigned seed)
      : trace(RandomTrace(seed)),
        profile(graph::Aggregate(trace)),
        tree(profile) {}

  static graph::Trace RandomTrace(unsigned seed) {
    std::mt19937 random(seed);
    return test_support::RandomStep(
        random, {.blocks_least = 5, .blocks_most = 6, .operators_most = 2});
  }

  Question With(SegmentKind segments, bool may_skip) const {
    PlanOptions options;
    options.memory.model = MemoryModel::kTrace;
    options.may_skip = may_skip;
    return {.profile = &profile,
            .tree = &tree,
            .options = options,
            .trace = &trace,
            .segments = {.kind = segments}};
  }
};

int64_t Between(int64_t least, int64_t most) { return (least + most) / 2; }

TEST(AskTest, NoSegmentsAreTheFamilyOfOne) {
  for (unsigned seed = 0; seed < Repetitions(100); ++seed) {
    SCOPED_TRACE(seed);
    const TraceQuestion source(seed);
    const Question question = source.With(SegmentKind::kNone, seed % 2 == 0);
    const PlanningProblem problem = BuildPlanningProblem(
        source.profile, source.tree, question.options, &source.trace);
    const int64_t budget = Between(LeastPlan(problem, {}).budget.bytes,
                                   problem.unplanned_peak_bytes);
    const Answer answer = Ask(question, {.bytes = budget});
    ASSERT_EQ(answer.families.size(), 1U);
    const Plan alone = PlanFor(problem, budget, {}).plan;
    EXPECT_EQ(answer.plan.recompute_ms, alone.recompute_ms);
    EXPECT_EQ(answer.plan.peak_bytes, alone.peak_bytes);
    EXPECT_EQ(answer.plan.any_schedule.has_value(), seed % 2 == 0);
  }
}

TEST(AskTest, SegmentsNeverCostMore) {
  int cheaper = 0;
  for (unsigned seed = 0; seed < Repetitions(100); ++seed) {
    SCOPED_TRACE(seed);
    const TraceQuestion source(seed);
    const Question without_segments = source.With(SegmentKind::kNone, true);
    const Question with_segments = source.With(SegmentKind::kAuto, true);
    const Budget share{.kind = Budget::Kind::kShare, .share = .8};
    const Plan plan = Ask(without_segments, share).plan;
    const Answer answer = Ask(with_segments, share);
    if (!plan.HasPlan()) continue;
    ASSERT_TRUE(answer.plan.HasPlan());
    EXPECT_LE(answer.plan.recompute_ms, plan.recompute_ms * (1 + 1e-9));
    cheaper += answer.plan.recompute_ms < plan.recompute_ms * (1 - 1e-9);
    // The units are those of the family that the answer names.
    const auto& modules = answer.problem().profile->modules;
    for (const PlannedModule& unit : answer.plan.modules) {
      EXPECT_NE(std::ranges::find(modules, unit.fqn, &graph::Module::fqn),
                modules.end());
    }
  }
  EXPECT_GT(cheaper, Enough(3));
}

TEST(AskTest, TheMinimumIsTheLeastBudgetThatAPlanMeets) {
  for (unsigned seed = 0; seed < Repetitions(100); ++seed) {
    SCOPED_TRACE(seed);
    const TraceQuestion source(seed);
    Question question = source.With(
        seed % 2 == 0 ? SegmentKind::kAuto : SegmentKind::kNone, seed % 3 == 0);
    question.options.reserve_bytes = seed % 5;
    const Answer answer = Ask(question, {.kind = Budget::Kind::kMinimum});
    ASSERT_TRUE(answer.least && answer.least->least.budget.proven);
    EXPECT_TRUE(answer.plan.HasPlan());
    EXPECT_EQ(answer.plan.budget_bytes, answer.least->least.budget.bytes);
    const int64_t below = answer.plan.budget_bytes - 1;
    if (below <= question.options.reserve_bytes) continue;
    const Answer none = Ask(question, {.bytes = below});
    EXPECT_EQ(none.plan.status, PlanStatus::kInfeasible);
    EXPECT_EQ(none.plan.minimum_budget_bytes, answer.plan.budget_bytes);
    EXPECT_FALSE(none.least);
  }
}

TEST(AskTest, AMinimumThatIsNotFoundHasNoPlan) {
  const graph::Profile profile = test_support::RandomProfile(3);
  const graph::ModuleTree tree(profile);
  Question question{.profile = &profile,
                    .tree = &tree,
                    .options = {.granularity = Granularity::kModule,
                                .tradeoff = Tradeoff::kProfile,
                                .engine = Engine::kCbc}};
  question.options.limits.node_limit = 0;
  question.options.limits.time_limit_s = 0;
  const Answer answer = Ask(question, {.kind = Budget::Kind::kMinimum});
  ASSERT_TRUE(answer.least);
  if (answer.least->least.budget.proven) GTEST_SKIP();
  EXPECT_EQ(answer.plan.status, PlanStatus::kNoPlan);
  EXPECT_TRUE(answer.plan.limit);
}

TEST(AskTest, OffloadIsPartOfTheAnswer) {
  int sent_count = 0;
  for (unsigned seed = 0; seed < Repetitions(100); ++seed) {
    SCOPED_TRACE(seed);
    const TraceQuestion source(seed);
    const Question question = source.With(SegmentKind::kNone, true);
    const Budget share{.kind = Budget::Kind::kShare, .share = .8};
    const Plan plan = Ask(question, share).plan;
    if (!plan.HasPlan()) continue;
    const Plan offloading =
        Ask(question, share, LinkLimits{.rates = graph::BothWays(1e15)}).plan;
    ASSERT_TRUE(offloading.HasPlan());
    EXPECT_LE(offloading.CostMs(), plan.recompute_ms * (1 + 1e-9));
    sent_count += offloading.offload && offloading.offload->sent_bytes > 0;
  }
  EXPECT_GT(sent_count, Enough(3));
}

TEST(AskTest, FrontiersAreAnswersAtEachBudget) {
  for (unsigned seed = 0; seed < Repetitions(20); ++seed) {
    SCOPED_TRACE(seed);
    const TraceQuestion source(seed);
    const Question question = source.With(
        seed % 2 == 0 ? SegmentKind::kAuto : SegmentKind::kNone, false);
    std::vector<std::pair<size_t, size_t>> calls;
    const FrontierAnswer even = AskFrontier(
        question, 5, [&](size_t k, size_t n) { calls.emplace_back(k, n); });
    ASSERT_TRUE(even.least.least.budget.proven);
    ASSERT_FALSE(even.plans.empty());
    EXPECT_EQ(calls.front(), std::pair(size_t{0}, even.plans.size()));
    EXPECT_EQ(calls.back(), std::pair(even.plans.size(), even.plans.size()));
    EXPECT_EQ(even.plans.front().budget_bytes, even.least.least.budget.bytes);
    std::vector<Budget> budgets = {{.kind = Budget::Kind::kMinimum},
                                   {.kind = Budget::Kind::kShare, .share = 1}};
    for (const Plan& plan : even.plans) {
      budgets.push_back({.bytes = plan.budget_bytes});
      const Plan alone = Ask(question, budgets.back()).plan;
      EXPECT_NEAR(plan.recompute_ms, alone.recompute_ms,
                  1e-9 * (1 + alone.recompute_ms));
    }
    const FrontierAnswer at_budgets = AskFrontier(question, budgets);
    ASSERT_EQ(at_budgets.plans.size(), even.plans.size());
    for (size_t k = 0; k < at_budgets.plans.size(); ++k) {
      EXPECT_EQ(at_budgets.plans[k].budget_bytes, even.plans[k].budget_bytes);
    }
  }
}

TEST(BudgetTest, SharesAreBytesOfSomething) {
  const auto share = [](double fraction, int64_t unplanned) {
    return Budget{.kind = Budget::Kind::kShare, .share = fraction}.Bytes(
        unplanned);
  };
  EXPECT_EQ(share(.75, 1000), 750);
  EXPECT_EQ(share(.005, 199), 1);  // never 0
  EXPECT_EQ(share(.99, 101), 99);  // rounded down
  EXPECT_EQ(share(1e4, int64_t{1} << 60), int64_t{1} << 62);
  EXPECT_EQ(Budget{.bytes = 75}.Bytes(1000), 75);
}

TEST(LimitsOfMinimumTest, LeaveTimeForAPlan) {
  const solver::SearchLimits half =
      LimitsOfMinimum({.time_limit_s = 8, .gap = .1});
  EXPECT_EQ(half.time_limit_s, 4);
  EXPECT_EQ(half.gap, 0);
}

}  // namespace
}  // namespace acplan::problems
