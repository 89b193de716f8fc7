#include "problems/segment_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "graph/trace/trace.h"
#include "problems/check/plan_check.h"
#include "problems/plan/plan_on_trace.h"
#include "tests/problems/trace_case.h"
#include "tests/support/random_step.h"

namespace acplan::problems {
namespace {

using ::testing::HasSubstr;
using ::testing::Optional;

constexpr int64_t kMostPlans = 3000;

graph::Trace StepOf(unsigned seed) {
  std::mt19937 random(seed);
  return test_support::RandomStep(
      random, {.blocks_least = 3, .blocks_most = 4, .operators_most = 2});
}

PlanOptions OnTraces() {
  PlanOptions options;
  options.memory.model = MemoryModel::kTrace;
  return options;
}

std::vector<std::string> NamesOf(const graph::Trace& trace,
                                 const std::vector<graph::ModuleRun>& runs) {
  std::vector<std::string> names;
  for (const graph::ModuleRun& run : runs) {
    names.push_back(graph::SegmentName(trace, run));
  }
  return names;
}

// Every plan of every family. Nothing where there are too many.
std::optional<TracePlans> PlansOf(const ProblemsWithSegments& problems) {
  TracePlans all;
  for (const auto& problem : problems) {
    const auto plans = EnumeratePlans(
        std::get<TraceProblem>(problem->problem.built), {}, kMostPlans);
    if (!plans) return std::nullopt;
    all.plans.insert(all.plans.end(), plans->plans.begin(), plans->plans.end());
  }
  return all;
}

// Blocks that are called one after the other, without anything in between.
graph::Trace Blocks(int count) {
  graph::Trace trace;
  trace.modules = {{"M", "M", {}, {}}};
  trace.calls.push_back(
      {.module = 0, .start = 0, .end = count, .inputs = {}, .outputs = {}});
  for (int32_t k = 0; k < count; ++k) {
    trace.modules.push_back({"M." + std::to_string(k), "L", {}, {}});
    trace.calls.push_back({.module = k + 1,
                           .parent = 0,
                           .start = k,
                           .end = k + 1,
                           .inputs = {},
                           .outputs = {}});
  }
  return trace;
}

TEST(SegmentFamiliesTest, CutRunsFromTheFirstChildOn) {
  const graph::Trace trace = Blocks(7);
  const auto families = SegmentFamilies(trace, {.kind = SegmentKind::kAuto});
  ASSERT_EQ(families.size(), 2U);
  EXPECT_THAT(
      NamesOf(trace, families[0]),
      ::testing::ElementsAre("M.0-1", "M.2-3", "M.4-5", "M.0-3", "M.4-6"));
  EXPECT_THAT(NamesOf(trace, families[1]),
              ::testing::ElementsAre("M.0-2", "M.3-5"));
  EXPECT_THAT(
      NamesOf(trace, SegmentFamilies(
                         trace, {.kind = SegmentKind::kLength, .length = 4})
                         .front()),
      ::testing::ElementsAre("M.0-3", "M.4-6"));
  EXPECT_TRUE(SegmentFamilies(trace, {}).front().empty());
}

TEST(SegmentPlansTest, NoPlanOfAFamilyIsBetter) {
  int done = 0;
  int with_segments = 0;
  for (unsigned seed = 0; done < 40 && seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    const graph::Trace trace = StepOf(seed);
    const ProblemsWithSegments problems = BuildProblemsWithSegments(
        trace, OnTraces(), {.kind = SegmentKind::kAuto});
    const bool has_runs = std::ranges::any_of(problems, [](const auto& p) {
      return std::ranges::any_of(p->trace.modules,
                                 &graph::TraceModule::IsSegment);
    });
    if (!has_runs) continue;
    const std::optional<TracePlans> all = PlansOf(problems);
    if (!all) continue;
    ++done;
    const LeastWithSegments least = LeastPlan(problems, {});
    ASSERT_TRUE(least.least.budget.proven);
    ASSERT_EQ(least.least.budget.bytes, all->LeastPeakBytes());
    for (const int64_t budget : BudgetsAbout(*all, seed)) {
      if (budget <= 0) continue;
      const PlanWithSegments answer = PlanFor(problems, budget, {});
      const std::optional<double> best = all->LeastMs(budget);
      ASSERT_EQ(answer.plan.HasPlan(), best.has_value());
      if (!best) {
        EXPECT_EQ(answer.plan.status, PlanStatus::kInfeasible);
        EXPECT_EQ(answer.plan.minimum_budget_bytes, all->LeastPeakBytes());
        continue;
      }
      ASSERT_EQ(answer.plan.status, PlanStatus::kOptimal);
      ASSERT_NEAR(answer.plan.recompute_ms, *best, 1e-9 * (1 + *best));
      // The file's units, on the trace without segments.
      const auto again = WithSegmentsOf(trace, answer.plan.modules);
      with_segments += again ? 1 : 0;
      const graph::Trace& own = again ? *again : trace;
      EXPECT_LE(
          graph::Simulate(own, CheckpointedModules(own, answer.plan.modules))
              .peak_bytes,
          budget);
    }
  }
  EXPECT_EQ(done, 40);
  EXPECT_GT(with_segments, 10);
}

// The check says so, of a plan that the trace can be simulated with.
TEST(SegmentPlansTest, AreCheckedForUnitsInsideAndFsdpUnits) {
  const graph::Trace trace = StepOf(1);
  const std::vector<std::vector<int32_t>> runs = graph::LongestRuns(trace);
  ASSERT_FALSE(runs.empty());
  const graph::ModuleRun run = {.first = runs[0][0], .last = runs[0][1]};
  const std::string segment = graph::SegmentName(trace, run);
  const std::string child = trace.modules[run.last].fqn;
  const ProblemWithSegments with(trace, {run}, OnTraces());
  Plan plan;
  plan.memory.model = MemoryModel::kTrace;
  plan.budget_bytes = int64_t{1} << 40;
  const auto unit = [&](const std::string& fqn) {
    const graph::Module& module =
        *std::ranges::find(with.profile.modules, fqn, &graph::Module::fqn);
    PlannedModule planned{.fqn = fqn, .discard_ratio = 1, .ops = {}};
    for (size_t k = 0; k < module.sac->func_names.size(); ++k) {
      planned.ops.push_back(
          {.index = static_cast<int>(k), .name = module.sac->func_names[k]});
    }
    return planned;
  };
  plan.modules = {unit(segment)};
  EXPECT_EQ(FirstBrokenRule(with.profile, plan, {}, &with.trace), std::nullopt);
  PlanRules rules;
  rules.fsdp_units = {child};
  EXPECT_THAT(
      FirstBrokenRule(with.profile, plan, rules, &with.trace),
      Optional(HasSubstr(segment + " contains the FSDP unit " + child)));
  plan.modules = {unit(segment), unit(child)};
  EXPECT_THAT(FirstBrokenRule(with.profile, plan, {}, &with.trace),
              Optional(HasSubstr(child + " lies inside " + segment)));
}

}  // namespace
}  // namespace acplan::problems
