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

struct AllPlans {
  int64_t budget_bytes = 0;
  double least_step_ms = INFINITY;         // of the plans within the budget
  double least_recomputing_ms = INFINITY;  // of the one that recomputes least
};

struct OnePlan {
  int64_t peak_bytes = 0;
  double step_ms = 0;
  double recompute_ms = 0;
};

// Returns all plans of a question, or nothing if there are too many.
std::optional<std::vector<OnePlan>> PlansOf(const Question& question) {
  std::vector<OnePlan> plans;
  const Families families = BuildFamilies(question);
  for (const FamilyProblem& family : families) {
    const auto& problem = std::get<TraceProblem>(family.problem.formulation);
    const auto of_family = EnumeratePlans(problem, {}, kMostHostPlans);
    if (!of_family) return std::nullopt;
    for (const TracePlans::Plan& plan : of_family->plans) {
      const graph::Simulation step = problem.simulator.Simulate(plan.modules);
      plans.push_back(
          {plan.peak_bytes,
           TimesOfStep(*family.problem.trace, plan.modules, step)->Longer(),
           step.recompute_ms});
    }
  }
  return plans;
}

// Where operators may be skipped, all plans are those that skip whatever nothing needs,
// and those that skip nothing.
std::optional<AllPlans> Enumerate(const AskedStep& host_case, unsigned seed) {
  std::optional<std::vector<OnePlan>> plans = PlansOf(host_case.question);
  if (!plans) return std::nullopt;
  std::ranges::sort(*plans, {}, &OnePlan::peak_bytes);
  AllPlans all{.budget_bytes =
                   (*plans)[plans->size() * (1 + seed % 3) / 20].peak_bytes};
  if (host_case.question.options.may_skip) {
    Question without_skips = host_case.question;
    without_skips.options.may_skip = false;
    const auto others = PlansOf(without_skips);
    if (!others) return std::nullopt;
    plans->insert(plans->end(), others->begin(), others->end());
  }
  double least_ms = INFINITY;
  for (const OnePlan& plan : *plans) {
    if (plan.peak_bytes > all.budget_bytes) continue;
    all.least_step_ms = std::min(all.least_step_ms, plan.step_ms);
    if (plan.recompute_ms < least_ms) {
      least_ms = plan.recompute_ms;
      all.least_recomputing_ms = plan.step_ms;
    }
  }
  return all;
}

TEST(HostPlans, AreBetweenTheBoundAndTheLeastRecomputation) {
  int waiting = 0;
  int better = 0;
  int best = 0;
  for (unsigned seed = 1; waiting < Repetitions(60); ++seed) {
    ASSERT_LT(seed, 100'000u);
    const AskedStep host_case(StepWithHost(seed), seed);
    const std::optional<AllPlans> all = Enumerate(host_case, seed);
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
