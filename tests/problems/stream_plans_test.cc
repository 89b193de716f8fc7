#include "problems/stream_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <functional>
#include <optional>
#include <random>
#include <string>
#include <variant>
#include <vector>

#include "graph/trace/stream_times.h"
#include "problems/ask.h"
#include "problems/check/plan_check.h"
#include "problems/check/stream_rules.h"
#include "tests/problems/trace/asked_step.h"
#include "tests/problems/trace/step_plans.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"

// Plans of steps on streams, against all plans of small random steps.

namespace acplan::problems {
namespace {

using graph::OperatorId;
using test_support::Enough;
using test_support::Repetitions;
using ::testing::HasSubstr;

constexpr int64_t kMostStreamPlans = 3000;
constexpr double kTolerance = 1e-7;

// Puts operators of the backward pass, and fewer of the forward pass, on other streams. Some
// later operators of the default stream wait for them.
void AddStreams(graph::Trace& trace, std::mt19937& random, double share) {
  trace.operator_names.push_back("c10d._allgather_base_.default");
  const auto name = trace.operator_names.last_id();
  std::vector<OperatorId> awaited;
  for (const OperatorId op : trace.operators.ids()) {
    graph::TraceOperator& one = trace.operators[op];
    const graph::Time time = graph::StartOf(op);
    const bool is_in_backward =
        time >= trace.forward_end && time < trace.backward_end;
    if (random() % (is_in_backward ? 4 : 12) == 0) {
      one.stream = static_cast<int32_t>(1 + random() % 2);
      one.name = name;
      one.runtime_ms = share * static_cast<double>(random() % 60);
      if (time > 0 && random() % 2 == 0) {
        one.waits = {graph::Previous(op)};
      }
      awaited.push_back(op);
    } else if (!awaited.empty() && random() % 3 == 0) {
      one.waits = {awaited.back()};
    }
  }
}

graph::Trace StepOnStreams(unsigned seed) {
  std::mt19937 random(seed);
  graph::Trace trace =
      test_support::RandomStep(random, {.blocks_least = 3,
                                        .blocks_most = 4,
                                        .operators_most = 3,
                                        .skips = seed % 3 == 0,
                                        .repeats = seed % 4 == 0});
  AddStreams(trace, random, seed % 2 == 0 ? 1 : .3);
  return trace;
}

// Returns the step's time. Compares both measures of it.
double StreamMs(const graph::Trace& trace, const TracePlans::Plan& /*plan*/,
                const graph::Simulation& step) {
  const double step_ms = TimeOnStreams(trace, step.steps).step_ms;
  EXPECT_NEAR(step_ms, LongestPathMs(trace, step), 1e-9 * step_ms);
  return step_ms;
}

std::optional<LeastSteps> Enumerate(const AskedStep& stream_case,
                                    unsigned seed) {
  const auto plans =
      StepPlansOf(stream_case.question, kMostStreamPlans, StreamMs);
  if (!plans) return std::nullopt;
  return LeastWithin(SmallBudget(*plans, seed), *plans);
}

TEST(StreamPlans, AreBetweenTheBoundAndTheLeastRecomputation) {
  int cases = 0, better = 0, best = 0, proven = 0;
  for (unsigned seed = 1; cases < Repetitions(200); ++seed) {
    ASSERT_LT(seed, 100'000u);
    const AskedStep stream_case(StepOnStreams(seed), seed);
    if (!HasStreams(stream_case.trace)) continue;
    const std::optional<LeastSteps> all = Enumerate(stream_case, seed);
    if (!all) continue;
    const Plan plan =
        Ask(stream_case.question, {.bytes = all->budget_bytes}).plan;
    if (!plan.HasPlan() || plan.modules.empty()) continue;
    ++cases;
    ASSERT_TRUE(plan.streams && plan.streams->least_step_ms) << seed;
    const double slack = kTolerance * all->least_step_ms + 1e-9;
    EXPECT_LE(*plan.streams->least_step_ms, all->least_step_ms + slack) << seed;
    EXPECT_GE(plan.streams->step_ms, all->least_step_ms - slack) << seed;
    EXPECT_LE(plan.streams->step_ms,
              all->least_recomputing_ms * (1 + 1e-3) + slack)
        << seed;
    const bool is_best = plan.streams->step_ms <= all->least_step_ms + slack;
    if (plan.status == PlanStatus::kOptimal) {
      EXPECT_TRUE(is_best) << seed;
    }
    better += plan.streams->step_ms < all->least_recomputing_ms - slack;
    best += is_best;
    proven += plan.status == PlanStatus::kOptimal;
  }
  RecordProperty("better", better);
  RecordProperty("best", best);
  RecordProperty("proven", proven);
  // The search is no proof: most plans are the best ones all the same.
  EXPECT_GE(better, Enough(5));
  EXPECT_GT(best * 10, cases * 8) << best << " of " << cases;
  EXPECT_GT(proven * 10, cases * 3) << proven << " of " << cases;
}

TEST(StreamPlans, AFrontierHasTheShortestStepsThatAreKnown) {
  int cases = 0, better = 0;
  for (unsigned seed = 1; cases < Repetitions(200); ++seed) {
    ASSERT_LT(seed, 100'000u);
    const AskedStep stream_case(StepOnStreams(seed), seed);
    if (!HasStreams(stream_case.trace)) continue;
    const auto all =
        StepPlansOf(stream_case.question, kMostStreamPlans, StreamMs);
    if (!all) continue;
    ++cases;
    double smaller_ms = INFINITY;
    for (const Plan& plan : AskFrontier(stream_case.question, 4).plans) {
      const LeastSteps least = LeastWithin(plan.budget_bytes, *all);
      ASSERT_TRUE(plan.HasPlan() && plan.streams->least_step_ms) << seed;
      const double step_ms = plan.streams->step_ms;
      const double slack = kTolerance * least.least_step_ms + 1e-9;
      EXPECT_LE(*plan.streams->least_step_ms, least.least_step_ms + slack);
      EXPECT_GE(step_ms, least.least_step_ms - slack) << seed;
      EXPECT_LE(step_ms, smaller_ms) << seed;
      if (plan.status == PlanStatus::kOptimal) {
        EXPECT_LE(step_ms, least.least_step_ms + slack) << seed;
      }
      better += step_ms < least.least_recomputing_ms - slack;
      smaller_ms = step_ms;
    }
  }
  EXPECT_GE(better, Enough(5));
}

TEST(StreamPlans, FalseStatementsAreFound) {
  for (unsigned seed = 1; seed < 400; ++seed) {
    const AskedStep stream_case(StepOnStreams(seed), seed);
    const Plan plan =
        Ask(stream_case.question, {.kind = Budget::Kind::kShare, .share = .7})
            .plan;
    if (!plan.HasPlan() || plan.modules.empty() || !plan.streams ||
        plan.streams->exposed_ms == 0) {
      continue;
    }
    const auto complaint = [&](const std::function<void(Plan&)>& edit) {
      Plan edited = plan;
      edit(edited);
      return FirstBrokenRule(stream_case.profile, edited, {},
                             &stream_case.trace)
          .value_or("");
    };
    ASSERT_EQ(complaint([](Plan&) {}), "") << seed;
    EXPECT_THAT(complaint([](Plan& p) { p.streams->step_ms += 1; }),
                HasSubstr("step on streams in ms"));
    EXPECT_THAT(complaint([](Plan& p) { p.streams->exposed_ms += 1; }),
                HasSubstr("exposed communication in ms"));
    EXPECT_THAT(complaint([](Plan& p) { p.streams->communication_ms += 1; }),
                HasSubstr("communication in ms"));
    EXPECT_THAT(complaint([](Plan& p) { p.streams->baseline_ms += 1; }),
                HasSubstr("step without it in ms"));
    EXPECT_THAT(complaint([](Plan& p) { p.streams->baseline_exposed_ms += 1; }),
                HasSubstr("exposed communication without it in ms"));
    EXPECT_THAT(complaint([](Plan& p) {
                  p.status = PlanStatus::kFeasible;
                  p.streams->least_step_ms = p.streams->step_ms * 2;
                }),
                HasSubstr("no plan's step takes less"));
    EXPECT_THAT(complaint([](Plan& p) {
                  p.status = PlanStatus::kOptimal;
                  p.streams->least_step_ms = p.streams->step_ms / 2;
                }),
                HasSubstr("the plan says it is optimal"));
    EXPECT_THAT(complaint([](Plan& p) { p.overhead += .1; }),
                HasSubstr("overhead"));
    return;
  }
  FAIL() << "no plan";
}

TEST(StreamPlans, AreReadAsTheyWereWritten) {
  for (unsigned seed = 1; seed < 100; ++seed) {
    const AskedStep stream_case(StepOnStreams(seed), seed);
    const Plan plan =
        Ask(stream_case.question, {.kind = Budget::Kind::kShare, .share = .8})
            .plan;
    if (!plan.HasPlan() || !plan.streams) continue;
    const Plan read = ParsePlan(PlanToJson(plan), "p.json");
    EXPECT_EQ(read.streams, plan.streams);
    return;
  }
  FAIL() << "no plan";
}

}  // namespace
}  // namespace acplan::problems
