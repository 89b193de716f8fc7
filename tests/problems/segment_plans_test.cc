#include "problems/segment_plans.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "graph/trace/trace.h"
#include "problems/budget_frontier.h"
#include "problems/check/plan_check.h"
#include "problems/plan/plan_on_trace.h"
#include "tests/problems/trace/trace_case.h"
#include "tests/support/random_step.h"
#include "tests/support/repetitions.h"
#include "tests/support/trace_ids.h"

namespace acplan::problems {
namespace {

using namespace graph::trace_ids;

using test_support::Enough;
using test_support::Repetitions;
using ::testing::HasSubstr;
using ::testing::Optional;

constexpr int64_t kMostSegmentPlans = 3000;

graph::Trace SegmentedStepOf(unsigned seed,
                             const test_support::StepOptions& options = {
                                 .blocks_least = 3,
                                 .blocks_most = 4,
                                 .operators_most = 2}) {
  std::mt19937 random(seed);
  return test_support::RandomStep(random, options);
}

PlanOptions OnTraces(bool may_skip = false) {
  PlanOptions options;
  options.memory.model = MemoryModel::kTrace;
  options.may_skip = may_skip;
  return options;
}

// Returns the modules in a unit, of a trace without segments, as a range of
// indices.
std::pair<int32_t, int32_t> ModulesOf(const graph::Trace& trace,
                                      const std::string& unit) {
  const auto run = graph::RunNamed(trace, unit);
  const graph::ModuleId first =
      run ? run->first : graph::FindModule(trace, unit);
  const graph::ModuleId last = run ? run->last : first;
  const std::string name = trace.modules[last].fqn + ".";
  graph::ModuleId end = Next(last);
  while (end < trace.modules.end_id() &&
         trace.modules[end].fqn.starts_with(name)) {
    end = Next(end);
  }
  return {IndexOf(first), IndexOf(end)};
}

// Expects no overlapping units, since the adapter refuses them.
void ExpectApart(const graph::Trace& trace, const Plan& plan) {
  std::vector<std::pair<int32_t, int32_t>> all;
  for (const PlannedModule& unit : plan.modules) {
    all.push_back(ModulesOf(trace, unit.fqn));
  }
  std::ranges::sort(all);
  for (size_t k = 1; k < all.size(); ++k) {
    EXPECT_GE(all[k].first, all[k - 1].second) << plan.modules[k].fqn;
  }
}

std::vector<std::string> NamesOf(const graph::Trace& trace,
                                 const std::vector<graph::ModuleRun>& runs) {
  std::vector<std::string> names;
  for (const graph::ModuleRun& run : runs) {
    names.push_back(graph::SegmentName(trace, run));
  }
  return names;
}

// Returns every plan of every family; nothing if there are too many.
std::optional<TracePlans> PlansOf(const Families& problems) {
  TracePlans all;
  for (const auto& problem : problems) {
    const auto plans =
        EnumeratePlans(std::get<TraceProblem>(problem.problem.formulation), {},
                       kMostSegmentPlans);
    if (!plans) return std::nullopt;
    all.plans.insert(all.plans.end(), plans->plans.begin(), plans->plans.end());
  }
  return all;
}

// Returns consecutive blocks without anything in between.
graph::Trace Blocks(int count) {
  graph::Trace trace;
  trace.modules = {{"M", "M", {}, {}}};
  trace.calls.push_back({.module = 0_module,
                         .start = 0,
                         .end = count,
                         .inputs = {},
                         .outputs = {}});
  for (int32_t k = 0; k < count; ++k) {
    trace.modules.push_back({"M." + std::to_string(k), "L", {}, {}});
    trace.calls.push_back({.module = graph::ModuleId{k + 1},
                           .parent = 0_call,
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
  int cases = 0;
  int with_segments = 0;
  for (unsigned seed = 0; cases < Repetitions(40) && seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    const graph::Trace trace = SegmentedStepOf(seed);
    const Families problems =
        BuildFamilies(trace, OnTraces(), {.kind = SegmentKind::kAuto});
    const bool has_runs = std::ranges::any_of(problems, [](const auto& p) {
      return std::ranges::any_of(p.problem.trace->modules,
                                 &graph::TraceModule::IsSegment);
    });
    if (!has_runs) continue;
    const std::optional<TracePlans> all = PlansOf(problems);
    if (!all) continue;
    ++cases;
    const LeastOfFamilies least = LeastPlan(problems, {});
    ASSERT_TRUE(least.least.budget.proven);
    ASSERT_EQ(least.least.budget.bytes, all->LeastPeakBytes());
    for (const int64_t budget : BudgetsAbout(*all, seed)) {
      if (budget <= 0) continue;
      const PlanOfFamilies answer = PlanFor(problems, budget, {});
      const std::optional<double> best = all->LeastMs(budget);
      ASSERT_EQ(answer.plan.HasPlan(), best.has_value());
      if (!best) {
        EXPECT_EQ(answer.plan.status, PlanStatus::kInfeasible);
        EXPECT_EQ(answer.plan.minimum_budget_bytes, all->LeastPeakBytes());
        continue;
      }
      ASSERT_EQ(answer.plan.status, PlanStatus::kOptimal);
      ASSERT_NEAR(answer.plan.recompute_ms, *best, 1e-9 * (1 + *best));
      ExpectApart(trace, answer.plan);
      // The file's units, on the trace without segments.
      const auto with_segments_of = WithSegmentsOf(trace, answer.plan.modules);
      with_segments += with_segments_of ? 1 : 0;
      const graph::Trace& own = with_segments_of ? *with_segments_of : trace;
      EXPECT_LE(
          graph::Simulate(own, CheckpointedModules(own, answer.plan.modules))
              .peak_bytes,
          budget);
    }
  }
  EXPECT_EQ(cases, Repetitions(40));
  EXPECT_GT(with_segments, Enough(10));
}

// The frontier of all families, budget by budget; each plan is as good as that
// of a separate search.
TEST(SegmentPlansTest, FrontiersHaveTheBestPlanOfEachBudget) {
  int cases = 0;
  int compared = 0;
  for (unsigned seed = 0; cases < Repetitions(12) && seed < 2000; ++seed) {
    SCOPED_TRACE(seed);
    // Enough blocks for two families.
    const graph::Trace trace = SegmentedStepOf(seed, {.blocks_least = 5,
                                                      .blocks_most = 6,
                                                      .operators_least = 1,
                                                      .operators_most = 2});
    const Families problems = BuildFamilies(trace, OnTraces(/*may_skip=*/true),
                                            {.kind = SegmentKind::kAuto});
    if (problems.size() < 2) continue;
    const std::optional<TracePlans> all = PlansOf(problems);
    if (!all) continue;
    ++cases;
    std::vector<int64_t> budgets = BudgetsAbout(*all, seed);
    std::erase_if(budgets, [](int64_t budget) { return budget <= 0; });
    for (const Plan& plan : PlanFrontier(problems, budgets, {})) {
      const std::optional<double> best = all->LeastMs(plan.budget_bytes);
      ASSERT_EQ(plan.HasPlan(), best.has_value());
      if (!best) continue;
      EXPECT_NEAR(plan.recompute_ms, *best, 1e-9 * (1 + *best));
      ExpectApart(trace, plan);
    }
    // If the search is stopped at once, a family is no worse than the first,
    // whose plan it has.
    const LeastOfFamilies least = LeastPlan(problems, {.node_limit = 0});
    const LeastAnswer& first = least.of_family.front();
    for (const LeastAnswer& other : least.of_family) {
      const bool has_all = std::ranges::none_of(
          first.units.modules, [&](const graph::CheckpointedModule& unit) {
            return problems.front()
                .problem.trace->modules[unit.module]
                .IsSegment();
          });
      if (!has_all) continue;
      EXPECT_LE(other.budget.bytes, first.budget.bytes);
      ++compared;
    }
    // Each plan is still a plan for the next budget.
    double least_ms = std::numeric_limits<double>::infinity();
    for (const Plan& plan :
         PlanFrontier(problems, budgets, {.node_limit = 0})) {
      if (!plan.HasPlan()) continue;
      EXPECT_LE(plan.recompute_ms, least_ms * (1 + 1e-9));
      least_ms = plan.recompute_ms;
    }
  }
  EXPECT_EQ(cases, Repetitions(12));
  EXPECT_GE(compared, Enough(10));
}

// No matter how soon a search with skips is stopped, it is no worse than one
// without.
TEST(SegmentPlansTest, SkipsNeverMakeAPlanWorse) {
  int compared = 0;
  for (unsigned seed = 0; seed < Repetitions(60); ++seed) {
    SCOPED_TRACE(seed);
    const graph::Trace trace = SegmentedStepOf(seed);
    const FamilyProblem with =
        BuildFamily(trace, {}, OnTraces(/*may_skip=*/true));
    const FamilyProblem plain = BuildFamily(trace, {}, OnTraces());
    const LeastAnswer least = LeastPlan(plain.problem, {});
    EXPECT_LE(LeastPlan(with.problem, {.node_limit = 0}).budget.bytes,
              least.budget.bytes);
    const int64_t most = plain.problem.unplanned_peak_bytes;
    for (const int64_t share : {0, 1, 2, 3}) {
      const int64_t budget =
          least.budget.bytes + (most - least.budget.bytes) * share / 4;
      const Plan plan = PlanFor(plain.problem, budget, {}).plan;
      ASSERT_TRUE(plan.HasPlan());
      const Plan skips = PlanFor(with.problem, budget, {.node_limit = 0}).plan;
      ASSERT_TRUE(skips.HasPlan());
      EXPECT_LE(skips.recompute_ms, plan.recompute_ms * (1 + 1e-9));
      compared += plan.recompute_ms > 0 ? 1 : 0;
    }
  }
  EXPECT_GT(compared, Enough(100));
}

// The check refuses them, in a plan with which the trace can be simulated.
TEST(SegmentPlansTest, AreCheckedForUnitsInsideAndFsdpUnits) {
  const graph::Trace trace = SegmentedStepOf(1);
  const auto runs = graph::LongestRuns(trace);
  ASSERT_FALSE(runs.empty());
  const graph::ModuleRun run = {.first = runs[0][0], .last = runs[0][1]};
  const std::string segment = graph::SegmentName(trace, run);
  const std::string child = trace.modules[run.last].fqn;
  const FamilyProblem with = BuildFamily(trace, {run}, OnTraces());
  Plan plan;
  plan.memory.model = MemoryModel::kTrace;
  plan.budget_bytes = int64_t{1} << 40;
  const auto unit = [&](const std::string& fqn) {
    const graph::Module& module = *std::ranges::find(with.runs->profile.modules,
                                                     fqn, &graph::Module::fqn);
    PlannedModule planned_unit{.fqn = fqn, .discard_ratio = 1, .ops = {}};
    for (size_t k = 0; k < module.sac->func_names.size(); ++k) {
      planned_unit.ops.push_back(
          {.index = static_cast<int>(k), .name = module.sac->func_names[k]});
    }
    return planned_unit;
  };
  plan.modules = {unit(segment)};
  EXPECT_EQ(FirstBrokenRule(with.runs->profile, plan, {}, &with.runs->trace),
            std::nullopt);
  PlanRules rules;
  rules.fsdp_units = {child};
  EXPECT_THAT(
      FirstBrokenRule(with.runs->profile, plan, rules, &with.runs->trace),
      Optional(HasSubstr(segment + " contains the FSDP unit " + child)));
  plan.modules = {unit(segment), unit(child)};
  EXPECT_THAT(FirstBrokenRule(with.runs->profile, plan, {}, &with.runs->trace),
              Optional(HasSubstr(child + " lies inside " + segment)));
}

}  // namespace
}  // namespace acplan::problems
