#include "problems/offload_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <string>

#include "graph/base/input_error.h"
#include "graph/trace/aggregate.h"
#include "problems/check/offload_rules.h"
#include "problems/plan_options.h"
#include "problems/planner.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using test_support::Enough;
using test_support::Repetitions;
using ::testing::HasSubstr;
using ::testing::Optional;

PlanOptions Skipping(bool may_skip) {
  PlanOptions options;
  options.memory.model = MemoryModel::kTrace;
  options.may_skip = may_skip;
  return options;
}

// A random step with the question that is asked of it.
struct Question {
  explicit Question(unsigned seed, bool may_skip = true)
      : trace([seed] {
          std::mt19937 random(seed);
          return test_support::RandomStep(
              random,
              {.blocks_least = 2, .blocks_most = 3, .operators_most = 2});
        }()),
        profile(graph::Aggregate(trace)),
        tree(profile),
        problem(
            BuildPlanningProblem(profile, tree, Skipping(may_skip), &trace)) {}
  Question(const Question&) = delete;
  Question& operator=(const Question&) = delete;

  Plan Best(int64_t budget) const { return PlanFor(problem, budget, {}).plan; }

  const graph::Trace trace;
  const graph::Profile profile;
  const graph::ModuleTree tree;
  const PlanningProblem problem;
};

TEST(WithOffload, IsNeverWorseAndSaysWhatItDoes) {
  int offloads = 0;
  for (int seed = 0; seed < Repetitions(12); ++seed) {
    SCOPED_TRACE(seed);
    const Question question(seed);
    const int64_t least = LeastBudget(question.problem, {}).bytes;
    const Plan without = question.Best(least);
    ASSERT_TRUE(without.HasPlan());
    const Plan with =
        WithOffload(question.problem, without, {.bytes_per_second = 1e15}, {});
    ASSERT_TRUE(with.HasPlan());
    ASSERT_TRUE(with.offload);
    EXPECT_LE(with.peak_bytes, least);
    EXPECT_LE(with.recompute_ms + with.offload->stall_ms,
              without.recompute_ms + 1e-9);
    const auto actual = OffloadEffect(question.trace, with);
    ASSERT_TRUE(actual);
    EXPECT_EQ(BrokenOffloadRule(*with.offload, *actual), std::nullopt);
    if (with.offload->storages == 0) continue;
    ++offloads;
    PlanOffload stated = *with.offload;
    stated.host_memory_bytes = stated.host_bytes - 1;
    EXPECT_THAT(BrokenOffloadRule(stated, *actual),
                Optional(HasSubstr("over the host's memory")));
    stated = *with.offload;
    ++stated.host_bytes;
    EXPECT_THAT(BrokenOffloadRule(stated, *actual),
                Optional(HasSubstr("the host has")));
    stated = *with.offload;
    --stated.sent_bytes;
    EXPECT_THAT(BrokenOffloadRule(stated, *actual),
                Optional(HasSubstr("are offloaded")));
    stated = *with.offload;
    ++stated.storages;
    EXPECT_THAT(BrokenOffloadRule(stated, *actual),
                Optional(HasSubstr("are offloaded")));
    stated = *with.offload;
    stated.stall_ms += 1;
    EXPECT_THAT(BrokenOffloadRule(stated, *actual),
                Optional(HasSubstr("its step waits")));
  }
  EXPECT_GT(offloads, Enough(1));
}

TEST(WithOffload, KeepsTheHostsMemory) {
  for (int seed = 0; seed < Repetitions(6); ++seed) {
    const Question question(seed);
    const int64_t budget = LeastBudget(question.problem, {}).bytes;
    const Plan with =
        WithOffload(question.problem, question.Best(budget),
                    {.bytes_per_second = 1e15, .host_memory_bytes = 64}, {});
    ASSERT_TRUE(with.offload);
    EXPECT_EQ(with.offload->host_memory_bytes, 64);
    EXPECT_LE(with.offload->host_bytes, 64);
  }
}

TEST(OffloadEffect, IsNothingWithoutALink) {
  const Question question(1);
  EXPECT_EQ(OffloadEffect(question.trace,
                          question.Best(question.problem.unplanned_peak_bytes)),
            std::nullopt);
}

TEST(WithOffload, RefusesPlansThatMayNotSkip) {
  const Question question(1, /*may_skip=*/false);
  const Plan plan = question.Best(question.problem.unplanned_peak_bytes);
  EXPECT_THROW(
      WithOffload(question.problem, plan, {.bytes_per_second = 1e9}, {}),
      InputError);
}

}  // namespace
}  // namespace acplan::problems
