#include "problems/host_plans.h"

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

#include "graph/trace/host_times.h"
#include "problems/ask.h"
#include "problems/check/plan_check.h"
#include "tests/problems/trace/asked_step.h"
#include "tests/problems/trace/step_plans.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"

// Plans of steps that may wait for the host, against all plans of small random steps.

namespace acplan::problems {
namespace {

using test_support::Enough;
using test_support::Repetitions;
using ::testing::HasSubstr;

constexpr int64_t kMostHostPlans = 3000;
constexpr double kTolerance = 1e-7;

// Returns the host's times, `share` of the device's.
graph::HostTimes RandomHost(std::mt19937& random, double share) {
  const auto us = [&] {
    return share * 1e3 * static_cast<double>(random() % 8);
  };
  const auto pair = [&] {
    return graph::HostPair{.op_us = us(), .view_us = us()};
  };
  return {.forward = pair(),
          .backward = pair(),
          .update_us = us(),
          .call_us = us(),
          .unit = pair(),
          .quiet_unit = pair(),
          .module_us = us(),
          .launch_us = us()};
}

graph::Trace StepWithHost(unsigned seed) {
  std::mt19937 random(seed);
  graph::Trace trace =
      test_support::RandomStep(random, {.blocks_least = 3,
                                        .blocks_most = 4,
                                        .operators_most = 3,
                                        .skips = seed % 3 == 0,
                                        .repeats = seed % 4 == 0});
  trace.host = RandomHost(random, seed % 2 == 0 ? 1 : .2);
  return trace;
}

double LongerMs(const graph::Trace& trace, const TracePlans::Plan& plan,
                const graph::Simulation& step) {
  return TimesOfStep(trace, plan.modules, step)->Longer();
}

// Where operators may be skipped, all plans are those that skip whatever nothing needs,
// and those that skip nothing.
std::optional<LeastSteps> Enumerate(const AskedStep& host_case, unsigned seed) {
  auto plans = StepPlansOf(host_case.question, kMostHostPlans, LongerMs);
  if (!plans) return std::nullopt;
  const int64_t budget_bytes = SmallBudget(*plans, seed);
  if (host_case.question.options.may_skip) {
    Question without_skips = host_case.question;
    without_skips.options.may_skip = false;
    const auto others = StepPlansOf(without_skips, kMostHostPlans, LongerMs);
    if (!others) return std::nullopt;
    plans->insert(plans->end(), others->begin(), others->end());
  }
  return LeastWithin(budget_bytes, *plans);
}

TEST(HostPlans, AreBetweenTheBoundAndTheLeastRecomputation) {
  int waiting = 0;
  int better = 0;
  int best = 0;
  for (unsigned seed = 1; waiting < Repetitions(60); ++seed) {
    ASSERT_LT(seed, 100'000u);
    const AskedStep host_case(StepWithHost(seed), seed);
    const std::optional<LeastSteps> all = Enumerate(host_case, seed);
    if (!all) continue;
    const Plan plan =
        Ask(host_case.question, {.bytes = all->budget_bytes}).plan;
    ASSERT_TRUE(plan.host && plan.host->least_step_ms) << seed;
    const double slack = kTolerance * all->least_step_ms + 1e-9;
    EXPECT_LE(*plan.host->least_step_ms, all->least_step_ms + slack) << seed;
    EXPECT_GE(plan.host->step_ms, all->least_step_ms - slack) << seed;
    if (!plan.WaitsForHost() || plan.modules.empty()) continue;
    ++waiting;
    better += plan.host->step_ms < all->least_recomputing_ms - slack;
    best += plan.host->step_ms < all->least_step_ms * 1.01 + slack;
  }
  // The search is no proof: most plans are the best ones all the same.
  EXPECT_GE(better, Enough(20));
  EXPECT_GT(best * 10, waiting * 7) << best << " of " << waiting;
}

TEST(HostPlans, AFrontierHasTheShortestStepsThatAreKnown) {
  int cases = 0;
  int better = 0;
  for (unsigned seed = 1; cases < Repetitions(30); ++seed) {
    ASSERT_LT(seed, 100'000u);
    const AskedStep host_case(StepWithHost(seed), seed);
    const auto all = StepPlansOf(host_case.question, kMostHostPlans, LongerMs);
    if (!all) continue;
    ++cases;
    double smaller_ms = INFINITY;
    for (const Plan& plan : AskFrontier(host_case.question, 4).plans) {
      ASSERT_TRUE(plan.HasPlan() && plan.host->least_step_ms) << seed;
      EXPECT_LE(*plan.host->least_step_ms, plan.host->step_ms * (1 + 1e-9));
      EXPECT_LE(plan.host->step_ms, smaller_ms) << seed;
      better += plan.host->step_ms <
                LeastWithin(plan.budget_bytes, *all).least_recomputing_ms *
                    (1 - kTolerance);
      smaller_ms = plan.host->step_ms;
    }
  }
  EXPECT_GE(better, Enough(5));
}

TEST(HostPlans, AreThoseOfTheDeviceWhereTheHostIsFast) {
  for (unsigned seed = 1; seed < 16; ++seed) {
    AskedStep with(StepWithHost(seed), seed);
    with.trace.host->unit = with.trace.host->quiet_unit = {};
    with.trace.host->module_us = with.trace.host->launch_us = 0;
    AskedStep plain(StepWithHost(seed), seed);
    plain.trace.host.reset();
    const Budget budget{.kind = Budget::Kind::kShare, .share = .8};
    Plan a = Ask(with.question, budget).plan;
    Plan b = Ask(plain.question, budget).plan;
    if (a.WaitsForHost()) b.times_off.reset();
    a.host.reset();
    a.solver = b.solver;
    EXPECT_EQ(PlanToJson(a), PlanToJson(b)) << seed;
  }
}

TEST(HostPlans, FalseStatementsAreFound) {
  for (unsigned seed = 2; seed < 400; seed += 2) {
    const AskedStep host_case(StepWithHost(seed), seed);
    const Plan plan =
        Ask(host_case.question, {.kind = Budget::Kind::kShare, .share = .7})
            .plan;
    if (!plan.HasPlan() || plan.modules.empty()) continue;
    const auto complaint = [&](const std::function<void(PlanHost&)>& edit) {
      Plan edited = plan;
      edit(*edited.host);
      return FirstBrokenRule(host_case.profile, edited, {}, &host_case.trace)
          .value_or("");
    };
    ASSERT_EQ(complaint([](PlanHost&) {}), "") << seed;
    EXPECT_THAT(complaint([](PlanHost& host) { host.ms *= .9; }),
                HasSubstr("host's time in ms"));
    EXPECT_THAT(complaint([](PlanHost& host) { host.baseline_ms += 1; }),
                HasSubstr("host's time without it in ms"));
    EXPECT_THAT(complaint([](PlanHost& host) { host.device_ms += 1; }),
                HasSubstr("device's time in ms"));
    EXPECT_THAT(complaint([](PlanHost& host) { host.step_ms += 1; }),
                HasSubstr("step in ms"));
    EXPECT_THAT(complaint([](PlanHost& host) {
                  host.least_step_ms = host.step_ms * 2;
                }),
                HasSubstr("no plan's step takes less"));
    return;
  }
  FAIL() << "no plan";
}

}  // namespace
}  // namespace acplan::problems
