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

// A random step with a question about it.
struct OffloadCase {
  explicit OffloadCase(unsigned seed, bool may_skip = true, double times = 1)
      : trace([seed, times] {
          std::mt19937 random(seed);
          graph::Trace step = test_support::RandomStep(
              random,
              {.blocks_least = 4, .blocks_most = 8, .operators_most = 3});
          for (graph::TraceOperator& op : step.operators)
            op.runtime_ms *= times;
          return step;
        }()),
        profile(graph::Aggregate(trace)),
        tree(profile),
        problem(
            BuildPlanningProblem(profile, tree, Skipping(may_skip), &trace)) {}
  OffloadCase(const OffloadCase&) = delete;
  OffloadCase& operator=(const OffloadCase&) = delete;

  Plan Best(int64_t budget) const { return PlanFor(problem, budget, {}).plan; }

  const graph::Trace trace;
  const graph::Profile profile;
  const graph::ModuleTree tree;
  const PlanningProblem problem;
};

// Expects that the check refuses each figure of an offload that is off by a
// little.
void ExpectMisstatementsAreRefused(const PlanOffload& offload,
                                   const PlanOffload& actual) {
  const auto rule_of = [&](auto&& misstate) {
    PlanOffload stated = offload;
    misstate(stated);
    return BrokenOffloadRule(stated, actual);
  };
  EXPECT_THAT(rule_of([](PlanOffload& stated) {
                stated.host_memory_bytes = stated.host_bytes - 1;
              }),
              Optional(HasSubstr("over the limit of host memory")));
  EXPECT_THAT(rule_of([](PlanOffload& stated) { ++stated.host_bytes; }),
              Optional(HasSubstr("are in host memory")));
  EXPECT_THAT(rule_of([](PlanOffload& stated) { --stated.sent_bytes; }),
              Optional(HasSubstr("are offloaded")));
  EXPECT_THAT(rule_of([](PlanOffload& stated) { ++stated.storages; }),
              Optional(HasSubstr("are offloaded")));
  EXPECT_THAT(rule_of([](PlanOffload& stated) { stated.stall_ms += 1; }),
              Optional(HasSubstr("its step waits")));
}

TEST(WithOffload, IsNeverWorseAndSaysWhatItDoes) {
  int offloads = 0;
  for (int seed = 0; seed < Repetitions(12); ++seed) {
    SCOPED_TRACE(seed);
    const OffloadCase question(seed);
    const int64_t least = LeastPlan(question.problem, {}).budget.bytes;
    const int64_t most = question.problem.unplanned_peak_bytes;
    for (const int64_t budget : {least, least + (most - least) / 2}) {
      const Plan without_offload = question.Best(budget);
      ASSERT_TRUE(without_offload.HasPlan());
      const Plan with = WithOffload(question.problem, without_offload,
                                    {.rates = graph::BothWays(1e15)}, {});
      ASSERT_TRUE(with.HasPlan());
      ASSERT_TRUE(with.offload);
      EXPECT_LE(with.peak_bytes, budget);
      EXPECT_LE(with.recompute_ms + with.offload->stall_ms,
                without_offload.recompute_ms + 1e-9);
      const auto actual = OffloadEffect(question.trace, with);
      ASSERT_TRUE(actual);
      EXPECT_EQ(BrokenOffloadRule(*with.offload, *actual), std::nullopt);
      if (with.offload->storages == 0) continue;
      ++offloads;
      ExpectMisstatementsAreRefused(*with.offload, *actual);
    }
  }
  EXPECT_GT(offloads, Enough(8));
}

// A byte less of host memory than a plan would use, and so little that nothing
// can move.
TEST(WithOffload, KeepsTheHostsMemory) {
  int limited = 0;
  for (int seed = 0; seed < Repetitions(12); ++seed) {
    SCOPED_TRACE(seed);
    const OffloadCase question(seed);
    const int64_t budget = LeastPlan(question.problem, {}).budget.bytes;
    const Plan without_offload = question.Best(budget);
    const auto offload_with = [&](int64_t memory) {
      const Plan with = WithOffload(
          question.problem, without_offload,
          {.rates = graph::BothWays(1e15), .host_memory_bytes = memory}, {});
      EXPECT_LE(with.offload->host_bytes, memory);
      return *with.offload;
    };
    const int64_t wanted_bytes = offload_with(INT64_MAX).host_bytes;
    const PlanOffload none = offload_with(64);
    EXPECT_EQ(none.host_bytes, 0);
    EXPECT_EQ(none.host_memory_bytes, 64);
    if (wanted_bytes == 0) continue;
    ++limited;
    EXPECT_LT(offload_with(wanted_bytes - 1).host_bytes, wanted_bytes);
    EXPECT_EQ(offload_with(wanted_bytes).host_bytes, wanted_bytes);
  }
  EXPECT_GT(limited, Enough(5));
}

// No matter how short a step is, a plan that costs any of it is not free.
TEST(WithOffload, IsOptimalOnlyWhereItCostsNothing) {
  int dear = 0;
  for (int seed = 0; seed < Repetitions(12); ++seed) {
    SCOPED_TRACE(seed);
    const OffloadCase question(seed, /*may_skip=*/true, /*times=*/1e-12);
    const int64_t least = LeastPlan(question.problem, {}).budget.bytes;
    const Plan with = WithOffload(
        question.problem, question.Best(least),
        {.rates = graph::BothWays(1e9), .host_memory_bytes = 64}, {});
    ASSERT_TRUE(with.HasPlan());
    if (with.CostMs() < 1e-9 * with.baseline.runtime_ms) continue;
    ++dear;
    EXPECT_EQ(with.status, PlanStatus::kFeasible);
    EXPECT_EQ(with.gap, 1);
  }
  EXPECT_GT(dear, 0);
}

TEST(OffloadEffect, IsNothingWithoutALink) {
  const OffloadCase question(1);
  EXPECT_EQ(OffloadEffect(question.trace,
                          question.Best(question.problem.unplanned_peak_bytes)),
            std::nullopt);
}

TEST(WithOffload, RefusesPlansThatMayNotSkip) {
  const OffloadCase question(1, /*may_skip=*/false);
  const Plan plan = question.Best(question.problem.unplanned_peak_bytes);
  EXPECT_THROW(
      WithOffload(question.problem, plan, {.rates = graph::BothWays(1e9)}, {}),
      InputError);
}

}  // namespace
}  // namespace acplan::problems
