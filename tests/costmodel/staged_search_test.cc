#include "costmodel/search/staged_search.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "costmodel/planning/strategy_plan.h"
#include "tests/costmodel/golden_data.h"

namespace acplan::costmodel {
namespace {

using testing::IsEmpty;
using testing::SizeIs;

SearchProblem SmallProblem() {
  SearchProblem problem;
  problem.model = GoldenModel("models/megatron-22B.json");
  problem.system = GoldenSystem("systems/a100_80g.json");
  problem.num_procs = 8;
  problem.max_batch = 8;
  problem.corrections = AllCorrections();
  problem.filters = {ParseKeyFilter("optimizer_sharding=true", "--fix")};
  problem.plans = true;
  return problem;
}

// A runner that notes how it was called.
struct Call {
  bool plans;
  int64_t top_n;
  double least_rate;
};

SearchRunner Noting(std::vector<Call>& calls) {
  return [&calls](const SearchProblem& problem, const SearchOptions& options) {
    calls.push_back({problem.plans, options.top_n, options.least_rate});
    return FindBest(problem, options);
  };
}

// A runner whose stage, with or without plans, is interrupted at its end.
SearchRunner Interrupting(bool plans) {
  return [plans](const SearchProblem& problem, const SearchOptions& options) {
    SearchOutcome outcome = FindBest(problem, options);
    if (problem.plans == plans) {
      outcome.was_interrupted = true;
      if (plans) outcome.best.clear();
    }
    return outcome;
  };
}

void ExpectSame(const std::vector<Candidate>& found,
                const std::vector<Candidate>& expected) {
  ASSERT_EQ(found.size(), expected.size());
  for (size_t i = 0; i < found.size(); ++i) {
    EXPECT_EQ(found[i].execution, expected[i].execution);
    EXPECT_EQ(found[i].sample_rate, expected[i].sample_rate);
  }
}

TEST(StagedSearch, FindsWhatASearchInOneStageFinds) {
  const SearchProblem problem = SmallProblem();
  for (const int64_t top_n : {1, 4, 30}) {
    const StagedOutcome staged = FindBestInStages(problem, {.top_n = top_n});
    const SearchOutcome expected = FindBest(problem, {.top_n = top_n});
    ASSERT_TRUE(staged.plans.has_value());
    EXPECT_EQ(&staged.Answer(), &staged.plans->outcome);
    ExpectSame(staged.Answer().best, expected.best);
    EXPECT_EQ(staged.Answer().counts, expected.counts);
    EXPECT_LE(staged.Answer().planned, expected.planned);
    EXPECT_FALSE(staged.WasInterrupted());
  }
}

TEST(StagedSearch, TheSecondStageKnowsWhatPlansOfTheFirstReach) {
  const SearchProblem problem = SmallProblem();
  std::vector<Call> calls;
  const StagedOutcome staged =
      FindBestInStages(problem, {.top_n = 2}, Noting(calls));
  ASSERT_THAT(calls, SizeIs(2));
  EXPECT_FALSE(calls[0].plans);
  EXPECT_GT(calls[0].top_n, 2);
  EXPECT_TRUE(calls[1].plans);
  EXPECT_EQ(calls[1].top_n, 2);
  EXPECT_EQ(
      calls[1].least_rate,
      PlanCandidates(problem, staged.fixed.outcome.best, 2)[1].sample_rate);
}

TEST(StagedSearch, ALeastRateThatIsHigherStays) {
  SearchProblem problem = SmallProblem();
  const double known = 2 * BestRate(FindBest(problem, {}));
  std::vector<Call> calls;
  FindBestInStages(problem, {.least_rate = known}, Noting(calls));
  EXPECT_EQ(calls.at(1).least_rate, known);
}

// So that the first stage finds fewer strategies than are wanted.
TEST(StagedSearch, WithFewStrategiesNothingIsKnown) {
  SearchProblem problem = SmallProblem();
  problem.filters = {ParseKeyFilter("tensor_par=8", "--fix"),
                     ParseKeyFilter("microbatch_size=1", "--fix")};
  std::vector<Call> calls;
  const StagedOutcome staged =
      FindBestInStages(problem, {.top_n = 10'000}, Noting(calls));
  EXPECT_EQ(calls.at(1).least_rate, 0);
  EXPECT_GT(staged.Answer().counts.good, 0);
  EXPECT_EQ(static_cast<int64_t>(staged.Answer().best.size()),
            staged.Answer().counts.good);
}

TEST(StagedSearch, FixedPoliciesAreASingleStage) {
  SearchProblem problem = SmallProblem();
  problem.plans = false;
  std::vector<Call> calls;
  const StagedOutcome staged =
      FindBestInStages(problem, {.top_n = 5}, Noting(calls));
  ASSERT_THAT(calls, SizeIs(1));
  EXPECT_EQ(calls[0].top_n, 5);
  EXPECT_FALSE(staged.plans.has_value());
  EXPECT_EQ(&staged.Answer(), &staged.fixed.outcome);
  ExpectSame(staged.Answer().best, FindBest(problem, {.top_n = 5}).best);
}

TEST(StagedSearch, InterruptedInTheFirstStageThereIsNoSecond) {
  const StagedOutcome staged =
      FindBestInStages(SmallProblem(), {.top_n = 2}, Interrupting(false));
  EXPECT_FALSE(staged.plans.has_value());
  EXPECT_TRUE(staged.WasInterrupted());
  EXPECT_THAT(staged.Answer().best, SizeIs(2));
}

TEST(StagedSearch, InterruptedInTheSecondStageItHasWhatTheFirstLedTo) {
  const SearchProblem problem = SmallProblem();
  const StagedOutcome staged =
      FindBestInStages(problem, {.top_n = 2}, Interrupting(true));
  EXPECT_TRUE(staged.WasInterrupted());
  ExpectSame(staged.Answer().best,
             PlanCandidates(problem, staged.fixed.outcome.best, 2));
}

TEST(StagedSearch, IsProvenWhereTheBoundIsNoFaster) {
  SearchOutcome outcome;
  EXPECT_EQ(BestRate(outcome), 0);
  EXPECT_FALSE(IsProven(outcome));
  outcome.best.emplace_back().sample_rate = 4;
  outcome.rate_bound = 4 * (1 + kRateTolerance / 2);
  EXPECT_TRUE(IsProven(outcome));
  outcome.rate_bound = 4 * (1 + 2 * kRateTolerance);
  EXPECT_FALSE(IsProven(outcome));
  outcome.rate_bound = 3;
  EXPECT_TRUE(IsProven(outcome));
  outcome.was_interrupted = true;
  EXPECT_FALSE(IsProven(outcome));
}

TEST(RateFront, HasTheFastestStrategyWhereALargerBudgetHelps) {
  SearchProblem problem = SmallProblem();
  constexpr int64_t kBudgets = 4;
  std::vector<double> budgets;
  std::vector<double> rates;
  double fastest = 0;
  const double capacity = problem.system.mem1.capacity;
  for (int64_t i = 1; i <= kBudgets; ++i) {
    problem.system.mem1.capacity =
        std::floor(capacity * static_cast<double>(i) / kBudgets);
    const double rate = BestRate(FindBest(problem, {}));
    if (rate <= fastest) continue;
    fastest = rate;
    rates.push_back(rate);
    budgets.push_back(problem.system.mem1.capacity);
  }
  const RateFront front = FindRateFront(SmallProblem(), {.top_n = 9}, kBudgets);
  EXPECT_FALSE(front.was_interrupted);
  ASSERT_THAT(front.points, SizeIs(rates.size()));
  ASSERT_GT(rates.size(), 1U);
  for (size_t i = 0; i < rates.size(); ++i) {
    EXPECT_EQ(front.points[i].budget, budgets[i]);
    EXPECT_EQ(front.points[i].best.sample_rate, rates[i]);
    EXPECT_LE(front.points[i].best.memory, budgets[i]);
  }
}

TEST(RateFront, InterruptedItEndsBelow) {
  const RateFront whole = FindRateFront(SmallProblem(), {}, 4);
  const double last = whole.points.back().budget;
  const RateFront cut = FindRateFront(
      SmallProblem(), {}, 4,
      [&](const SearchProblem& problem, const SearchOptions& options) {
        SearchOutcome outcome = FindBest(problem, options);
        outcome.was_interrupted = problem.system.mem1.capacity == last;
        return outcome;
      });
  EXPECT_TRUE(cut.was_interrupted);
  EXPECT_THAT(cut.points, SizeIs(whole.points.size() - 1));
}

TEST(RateFront, IsEmptyWhereNothingFits) {
  SearchProblem problem = SmallProblem();
  problem.system.mem1.capacity = 1 << 20;
  const RateFront front = FindRateFront(problem, {}, 3);
  EXPECT_THAT(front.points, IsEmpty());
  EXPECT_FALSE(front.was_interrupted);
}

}  // namespace
}  // namespace acplan::costmodel
