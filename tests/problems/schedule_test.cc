#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "graph/schedule/schedule_graph.h"
#include "problems/check/schedule_check.h"
#include "problems/schedule/moment_model.h"
#include "problems/schedule/schedule_meter.h"
#include "problems/schedule/schedule_problem.h"
#include "problems/schedule/schedule_repair.h"
#include "problems/schedule/schedule_search.h"
#include "problems/schedule_plan.h"
#include "solver/cbc_solver.h"
#include "tests/problems/schedule_oracle.h"
#include "tests/support/instances.h"
#include "tests/support/random_schedule.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::ScheduleGraph;
using solver::SearchStatus;
using test_support::RandomSchedule;
using testing::ElementsAre;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// Returns a schedule in which nodes run again in random stages, if they may.
StagedSchedule AnySchedule(std::mt19937& random, const ScheduleGraph& graph) {
  StagedSchedule schedule = WithoutRecomputation(graph);
  for (int32_t s = 0; s < std::ssize(graph.nodes); ++s)
    for (int32_t n = 0; n < s; ++n)
      if (graph.nodes[n].may_run_again && random() % 4 == 0)
        schedule.repeats[s].push_back(n);
  return schedule;
}

// Returns budgets from the bytes that one node needs at least to those that all
// need.
std::vector<int64_t> Budgets(const ScheduleGraph& graph) {
  const int64_t least = std::ranges::max(NeededBytes(graph));
  const int64_t most = ScheduleBaseline(graph);
  return {least, (2 * least + most) / 3, (least + 2 * most) / 3};
}

// a (4 bytes) -> b (6) -> c (8); c, a -> d (3); b, d -> e (1).
ScheduleGraph Small() {
  ScheduleGraph graph;
  const std::vector<int64_t> bytes = {4, 6, 8, 3, 1};
  const std::vector<double> ms = {1, 5, 2, 2, 1};
  const std::vector<std::vector<int32_t>> reads = {
      {}, {0}, {1}, {2, 0}, {3, 1}};
  for (int32_t n = 0; n < 5; ++n) {
    graph.nodes.push_back({.name = std::string(1, static_cast<char>('a' + n)),
                           .ms = ms[n],
                           .reads = reads[n],
                           .makes = {n}});
    graph.values.push_back(
        {.name = graph.nodes.back().name, .bytes = bytes[n], .maker = n});
  }
  return graph;
}

TEST(RunSchedule, CountsWhatIsLive) {
  const ScheduleGraph graph = Small();
  const ScheduleRun once = RunSchedule(graph, WithoutRecomputation(graph));
  EXPECT_THAT(once.live_bytes, ElementsAre(4, 10, 18, 21, 10));
  EXPECT_EQ(once.peak_step, 3);
  // a is dropped after b, and runs again before d.
  StagedSchedule schedule = WithoutRecomputation(graph);
  schedule.repeats[3] = {0};
  const ScheduleRun run_with_repeat = RunSchedule(graph, schedule);
  EXPECT_THAT(run_with_repeat.sequence, ElementsAre(0, 1, 2, 0, 3, 4));
  EXPECT_THAT(run_with_repeat.live_bytes, ElementsAre(4, 10, 14, 18, 21, 10));
  EXPECT_EQ(run_with_repeat.recompute_ms, 1);
}

TEST(RunSchedule, IsThatOfAWalkFromTheEnd) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const ScheduleGraph graph =
        RandomSchedule(random, {.nodes = 1 + i % 12, .is_rich = i % 3 != 0});
    const StagedSchedule schedule = AnySchedule(random, graph);
    const ScheduleRun run = RunSchedule(graph, schedule);
    const ScheduleEffect effect = ComputeScheduleEffect(graph, run.sequence);
    ASSERT_EQ(run.peak_bytes, effect.peak_bytes);
    ASSERT_DOUBLE_EQ(run.recompute_ms, effect.recompute_ms);
    CheckSchedule(graph, run.sequence,
                  {run.peak_bytes, run.peak_bytes, run.recompute_ms});
    // The excess is summed over all runs.
    const int64_t budget = run.peak_bytes * 3 / 4;
    double excess = 0;
    for (const int64_t bytes : run.live_bytes)
      excess += static_cast<double>(std::max<int64_t>(0, bytes - budget));
    ScheduleMeter meter(graph, budget);
    ASSERT_EQ(meter.Excess(schedule), excess);
    ASSERT_EQ(meter.Excess(schedule), excess);
    ASSERT_EQ(meter.WorstStep(), run.peak_step);
  }
}

TEST(CheckSchedule, RefusesWhatIsNotSo) {
  ScheduleGraph graph = Small();
  const ScheduleClaim so{.budget_bytes = 21, .peak_bytes = 21};
  EXPECT_NO_THROW(CheckSchedule(graph, {0, 1, 2, 3, 4}, so));
  const auto refuse = [&](const std::vector<int32_t>& sequence,
                          const ScheduleClaim& claim, const char* what) {
    try {
      CheckSchedule(graph, sequence, claim);
      FAIL() << what;
    } catch (const std::logic_error& error) {
      EXPECT_THAT(error.what(), testing::HasSubstr(what));
    }
  };
  refuse({0, 1, 2, 3, 4}, {21, 20, 0}, "its peak is 21 bytes, not 20");
  refuse({0, 1, 2, 3, 4}, {20, 21, 0}, "over the budget of 20");
  refuse({0, 1, 2, 3, 4}, {21, 21, 1}, "it recomputes 0 ms, not 1");
  refuse({0, 2, 1, 3, 4}, so, "node 2 runs before node 1");
  refuse({0, 1, 2, 3}, so, "node 4 never runs");
  refuse({0, 1, 2, 1, 0, 3, 4}, so, "node 0 runs again after 1");
  graph.nodes[0].may_run_again = false;
  refuse({0, 1, 2, 0, 3, 4}, so, "node 0 runs again");
}

TEST(SolveSchedule, IsWhatEnumerationFinds) {
  std::mt19937 random(2);
  int searched = 0;
  int infeasible = 0;
  int better_in_any_order = 0;
  const int repetitions = test_support::Repetitions(300);
  for (int i = 0; i < repetitions; ++i) {
    const ScheduleGraph graph =
        RandomSchedule(random, {.nodes = 4 + i % 4, .is_rich = i % 2 == 0});
    for (const int64_t budget : Budgets(graph)) {
      const double least =
          LeastRecomputation(graph, budget, AgainRuns::kInOrder);
      const SchedulePlan plan = PlanSchedule(graph, {.budget_bytes = budget});
      const ScheduleAnswer& answer = plan.answer;
      if (least == kInfinity) {
        ASSERT_EQ(answer.status, SearchStatus::kInfeasible);
        ++infeasible;
        continue;
      }
      ASSERT_EQ(answer.status, SearchStatus::kOptimal);
      ASSERT_DOUBLE_EQ(answer.recompute_ms, least);
      ASSERT_DOUBLE_EQ(answer.bound_ms, least);
      searched += answer.models > 0;
      const double any = LeastRecomputation(graph, budget, AgainRuns::kAny);
      ASSERT_LE(any, least);
      better_in_any_order += any < least;
    }
  }
  EXPECT_GT(searched, repetitions / 4);
  EXPECT_GT(infeasible, 0);
  // Stages that run each node once, in order, are a restriction, if a small
  // one.
  EXPECT_LT(better_in_any_order, searched / 5);
}

// Returns the same graph with bytes of any size, up to a random power of ten.
ScheduleGraph WithLargeBytes(std::mt19937_64& random, ScheduleGraph graph) {
  int64_t most = 1000000;
  for (auto more = random() % 8; more > 0; --more) most *= 10;
  const int64_t unit = random() % 3 == 0 ? 512 : 1;
  const auto bytes = [&] {
    return static_cast<int64_t>(random() % (most / unit)) * unit;
  };
  for (graph::ScheduleValue& value : graph.values) value.bytes = bytes();
  for (graph::ScheduleNode& node : graph.nodes)
    if (node.scratch_bytes > 0) node.scratch_bytes = bytes();
  return graph;
}

TEST(SolveSchedule, IsWhatEnumerationFindsOfLargeBytes) {
  int questions = 0;
  int proven = 0;
  int infeasible = 0;
  for (int i = test_support::First(); i < test_support::End(300); ++i) {
    SCOPED_TRACE(i);
    std::mt19937 random(i);
    std::mt19937_64 large(i);
    const ScheduleGraph graph = WithLargeBytes(
        large,
        RandomSchedule(random, {.nodes = 4 + i % 3, .is_rich = i % 2 == 0}));
    int64_t peak = ScheduleBaseline(graph);
    const int64_t baseline = peak;
    for (int t = 0; t < 30; ++t)
      peak = std::min(
          peak, RunSchedule(graph, AnySchedule(random, graph)).peak_bytes);
    if (peak == baseline) continue;
    // The bytes that a schedule needs, and one byte less.
    for (const int64_t budget : {peak, peak - 1, baseline - 1}) {
      SCOPED_TRACE(budget);
      const double least =
          LeastRecomputation(graph, budget, AgainRuns::kInOrder);
      const ScheduleAnswer answer =
          PlanSchedule(graph, {.budget_bytes = budget}).answer;
      ++questions;
      if (least == kInfinity) {
        ASSERT_EQ(answer.status, SearchStatus::kInfeasible);
        ++infeasible;
        continue;
      }
      ASSERT_TRUE(answer.schedule);
      ASSERT_LE(answer.bound_ms, least * (1 + 1e-9));
      ASSERT_GE(answer.recompute_ms, least * (1 - 1e-9));
      if (answer.status != SearchStatus::kOptimal) continue;
      ASSERT_DOUBLE_EQ(answer.recompute_ms, least);
      ++proven;
    }
  }
  EXPECT_GE(questions, test_support::Instances(300) / 4);
  EXPECT_GE(infeasible, questions / 50);
  EXPECT_GE(proven + infeasible, questions - questions / 100);
}

Moments AllFirstRuns(const ScheduleGraph& graph) {
  Moments moments;
  for (int32_t n = 0; n + 1 < std::ssize(graph.nodes); ++n)
    moments.first_runs.insert(n);
  return moments;
}

// Returns the objective of the model; infinity if it has no solution.
double OptimumOf(const ScheduleGraph& graph, int64_t budget,
                 const Moments& moments) {
  const MomentModel model(graph, budget, moments);
  return solver::SolveWithCbc(model.program()).objective * model.time_unit();
}

TEST(MomentModel, OfAllMomentsIsTheProblemItself) {
  std::mt19937 random(3);
  for (int i = 0; i < test_support::Repetitions(60); ++i) {
    const ScheduleGraph graph =
        RandomSchedule(random, {.nodes = 4 + i % 4, .is_rich = i % 2 == 0});
    Moments all = AllFirstRuns(graph);
    for (int32_t s = 0; s < std::ssize(graph.nodes); ++s)
      for (int32_t n = 0; n < s; ++n) all.inner.insert({s, n});
    for (const int64_t budget : Budgets(graph)) {
      ASSERT_DOUBLE_EQ(OptimumOf(graph, budget, all),
                       LeastRecomputation(graph, budget, AgainRuns::kInOrder));
    }
  }
}

TEST(MomentModel, OfFirstRunsIsABoundInAnyOrder) {
  std::mt19937 random(4);
  int tight = 0;
  for (int i = 0; i < test_support::Repetitions(60); ++i) {
    const ScheduleGraph graph =
        RandomSchedule(random, {.nodes = 4 + i % 4, .is_rich = i % 2 == 0});
    for (const int64_t budget : Budgets(graph)) {
      const double any = LeastRecomputation(graph, budget, AgainRuns::kAny);
      const double bound = OptimumOf(graph, budget, AllFirstRuns(graph));
      ASSERT_LE(bound, any * (1 + 1e-9));
      tight += any > 0 && bound > 0.99 * any;
    }
  }
  EXPECT_GT(tight, 0);
}

TEST(MomentModel, EncodesSchedulesWithinTheBudget) {
  std::mt19937 random(5);
  int encoded = 0;
  for (int i = 0; i < test_support::Repetitions(300); ++i) {
    const ScheduleGraph graph = RandomSchedule(random, {.nodes = 9});
    StagedSchedule schedule = AnySchedule(random, graph);
    const ScheduleRun run = RunSchedule(graph, schedule);
    Moments moments;
    for (int32_t n = 0; n + 1 < std::ssize(graph.nodes); ++n)
      if (random() % 2 == 0) moments.first_runs.insert(n);
    moments.first_runs.insert({4, 5});
    for (int32_t n = 0; n < 5; ++n) moments.inner.insert({5, n});
    // The model has no runs that are repeated for nothing.
    ScheduleRepair(graph, run.peak_bytes, 1).Prune(schedule);
    const MomentModel model(graph, run.peak_bytes, moments);
    const std::vector<double> x = model.Encode(schedule);
    ASSERT_TRUE(solver::IsFeasible(model.program(), x));
    const double ms = solver::ObjectiveValue(model.program(), x);
    ASSERT_LE(ms * model.time_unit(), RecomputeMs(graph, schedule));
    // Running as late as it can, it is a schedule that costs no more.
    const StagedSchedule decoded = model.Decode(x);
    ASSERT_LE(RecomputeMs(graph, decoded), ms * model.time_unit() + 1e-9);
    ComputeScheduleEffect(graph, SequenceOf(decoded));
    encoded += ms > 0;
  }
  EXPECT_GT(encoded, 0);
}

TEST(ScheduleRepair, FindsSchedulesWithinTheBudgetAndNeverAWorseOne) {
  std::mt19937 random(6);
  int found_count = 0;
  for (int i = 0; i < 30; ++i) {
    const ScheduleGraph graph =
        RandomSchedule(random, {.nodes = 40, .is_rich = false});
    const int64_t budget = Budgets(graph)[2];
    ScheduleRepair repair(graph, budget, 1);
    const solver::LimitClock clock({});
    auto schedule = repair.Repair(WithoutRecomputation(graph), clock);
    if (!schedule) continue;
    ++found_count;
    double ms = RecomputeMs(graph, *schedule);
    for (int t = 0; t < 10; ++t) {
      repair.Improve(*schedule, clock);
      ASSERT_LE(RunSchedule(graph, *schedule).peak_bytes, budget);
      ASSERT_LE(RecomputeMs(graph, *schedule), ms);
      ms = RecomputeMs(graph, *schedule);
    }
  }
  EXPECT_GT(found_count, 15);
}

TEST(SolveSchedule, KeepsLimits) {
  std::mt19937 random(7);
  const ScheduleGraph graph =
      RandomSchedule(random, {.nodes = 60, .is_rich = false});
  const int64_t budget = Budgets(graph)[1];
  const std::atomic<bool> interrupted = true;
  const ScheduleAnswer stopped = SolveSchedule(
      graph, {.budget_bytes = budget, .limits = {.interrupted = &interrupted}});
  EXPECT_EQ(stopped.status, SearchStatus::kNoSolution);
  EXPECT_EQ(stopped.stopped_by, solver::StoppedBy::kInterrupt);
  const ScheduleAnswer late = SolveSchedule(
      graph, {.budget_bytes = budget, .limits = {.time_limit_s = 0}});
  EXPECT_EQ(late.stopped_by, solver::StoppedBy::kTime);
  // A known schedule is an answer.
  const ScheduleAnswer best = SolveSchedule(graph, {.budget_bytes = budget});
  ASSERT_EQ(best.status, SearchStatus::kOptimal);
  const ScheduleAnswer from_best =
      SolveSchedule(graph, {.budget_bytes = budget,
                            .limits = {.time_limit_s = 0},
                            .start = best.schedule});
  EXPECT_EQ(from_best.status, SearchStatus::kFeasible);
  EXPECT_EQ(from_best.recompute_ms, best.recompute_ms);
}

TEST(ScheduleFrontier, FallsWithTheBudget) {
  std::mt19937 random(8);
  const ScheduleGraph graph =
      RandomSchedule(random, {.nodes = 30, .is_rich = false});
  const std::vector<SchedulePlan> plans = ScheduleFrontier(graph, 6, {});
  ASSERT_EQ(plans.size(), 6u);
  double last = kInfinity;
  for (const SchedulePlan& plan : plans) {
    if (plan.answer.status == SearchStatus::kInfeasible) continue;
    EXPECT_EQ(plan.answer.status, SearchStatus::kOptimal);
    EXPECT_LE(plan.run->recompute_ms, last);
    last = plan.run->recompute_ms;
  }
  EXPECT_EQ(last, 0);
  EXPECT_EQ(plans.back().budget_bytes, ScheduleBaseline(graph));
}

}  // namespace
}  // namespace acplan::problems
