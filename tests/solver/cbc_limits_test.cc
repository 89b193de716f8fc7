#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <random>
#include <stdexcept>
#include <thread>
#include <vector>

#include "reference.h"
#include "solver/cbc_solver.h"
#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Enough;
using test_support::Repetitions;

// A limit that keeps tests from hanging on a machine that is merely slow.
constexpr double kGenerous = 60;

Milp Hard() { return HardKnapsack(200, 15, 2); }

// Returns the first item of a knapsack as its only one.
std::vector<double> FirstItem(const Milp& milp) {
  std::vector<double> x(milp.columns.size(), 0.0);
  x[0] = 1;
  return x;
}

void ExpectStopped(const Milp& milp, const MilpSolution& solution,
                   StoppedBy limit) {
  EXPECT_EQ(solution.stopped_by, limit);
  if (solution.x.empty()) {
    EXPECT_EQ(solution.status, MilpStatus::kNoSolution);
    return;
  }
  EXPECT_EQ(solution.status, MilpStatus::kFeasible);
  EXPECT_TRUE(IsFeasible(milp, solution.x));
  EXPECT_EQ(solution.objective, ObjectiveValue(milp, solution.x));
  EXPECT_LT(solution.bound, solution.objective);
  EXPECT_GT(solution.gap, 0);
}

TEST(CbcLimits, StopsAtTheTimeLimit) {
  const Milp milp = Hard();
  CbcOptions options;
  options.limits.time_limit_s = 1;
  const MilpSolution solution = SolveWithCbc(milp, options);
  ExpectStopped(milp, solution, StoppedBy::kTime);
  EXPECT_FALSE(solution.x.empty());
  EXPECT_LT(solution.seconds, kGenerous);
  EXPECT_LT(solution.gap, 0.5);
}

TEST(CbcLimits, HasNoTimeForANonPositiveLimit) {
  for (const double limit : {0.0, -1.0}) {
    CbcOptions options;
    options.limits.time_limit_s = limit;
    MilpSolution solution = SolveWithCbc(Hard(), options);
    EXPECT_EQ(solution.status, MilpStatus::kNoSolution);
    EXPECT_EQ(solution.stopped_by, StoppedBy::kTime);
    options.warm_start = FirstItem(Hard());
    solution = SolveWithCbc(Hard(), options);
    EXPECT_EQ(solution.status, MilpStatus::kFeasible);
    EXPECT_EQ(solution.stopped_by, StoppedBy::kTime);
    EXPECT_EQ(solution.x, FirstItem(Hard()));
    EXPECT_EQ(solution.bound, -kInfinity);
  }
}

TEST(CbcLimits, StopsAtTheNodeLimit) {
  const Milp milp = Hard();
  for (const int64_t limit : {0, 1, 10, 300}) {
    CbcOptions options;
    options.limits.node_limit = limit;
    const MilpSolution solution = SolveWithCbc(milp, options);
    ExpectStopped(milp, solution, StoppedBy::kNodes);
    EXPECT_LE(solution.nodes, limit + 100);
  }
}

TEST(CbcLimits, StopsAtTheGap) {
  const Milp milp = Hard();
  for (const double gap : {0.3, 0.05, 0.02}) {
    CbcOptions options;
    options.limits.gap = gap;
    const MilpSolution solution = SolveWithCbc(milp, options);
    ExpectStopped(milp, solution, StoppedBy::kGap);
    EXPECT_LE(solution.gap, gap);
  }
}

TEST(CbcLimits, MeasuresTheGapWithTheOffset) {
  Milp milp = Hard();
  milp.objective_offset = 1e6;
  CbcOptions options;
  options.limits.gap = 0.01;
  const MilpSolution solution = SolveWithCbc(milp, options);
  EXPECT_LE(solution.gap, 0.01);
  EXPECT_LT(solution.seconds, kGenerous);
  milp.objective_offset = -1e6;
  EXPECT_LE(SolveWithCbc(milp, options).gap, 0.01);
}

TEST(CbcLimits, BoundsAreNeverAboveTheOptimum) {
  for (int seed = 0; seed < 12; ++seed) {
    const Milp milp = HardKnapsack(25, 4, seed);
    const MilpSolution optimal = SolveWithCbc(milp);
    ASSERT_EQ(optimal.status, MilpStatus::kOptimal);
    for (const int64_t limit : {0, 5, 50}) {
      CbcOptions options;
      options.limits.node_limit = limit;
      const MilpSolution solution = SolveWithCbc(milp, options);
      EXPECT_LE(solution.bound, optimal.objective + 1e-6);
      EXPECT_GE(solution.objective, optimal.objective - 1e-6);
    }
    for (const double gap : {0.1, 0.01}) {
      CbcOptions options;
      options.limits.gap = gap;
      const MilpSolution solution = SolveWithCbc(milp, options);
      EXPECT_LE(solution.bound, optimal.objective + 1e-6);
      EXPECT_LE(solution.gap, gap);
    }
  }
}

TEST(CbcLimits, IsInterruptedBeforeItStarts) {
  const std::atomic<bool> interrupted = true;
  CbcOptions options;
  options.limits.interrupted = &interrupted;
  const MilpSolution solution = SolveWithCbc(Hard(), options);
  EXPECT_EQ(solution.status, MilpStatus::kNoSolution);
  EXPECT_EQ(solution.stopped_by, StoppedBy::kInterrupt);
}

TEST(CbcLimits, IsInterruptedFromAnotherThread) {
  const Milp milp = Hard();
  for (const int milliseconds : {1, 30, 100, 300, 1000}) {
    std::atomic<bool> interrupted = false;
    CbcOptions options;
    options.limits.interrupted = &interrupted;
    std::thread other([&interrupted, milliseconds] {
      std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds));
      interrupted = true;
    });
    const MilpSolution solution = SolveWithCbc(milp, options);
    other.join();
    ExpectStopped(milp, solution, StoppedBy::kInterrupt);
    EXPECT_LT(solution.seconds, kGenerous);
  }
}

// A solution that was reported before a stop is the answer after it.
TEST(CbcLimits, KeepsTheBestSolutionWhenInterrupted) {
  for (int after = 1; after < 10; after += 2) {
    std::atomic<bool> interrupted = false;
    double best = kInfinity;
    int solutions = 0;
    CbcOptions options;
    options.limits.interrupted = &interrupted;
    options.limits.on_progress = [&](const SearchProgress& progress) {
      if (progress.best >= best) return;
      best = progress.best;
      if (++solutions == after) interrupted = true;
    };
    options.limits.time_limit_s = 2;
    const Milp milp = HardKnapsack(200, 15, after);
    const MilpSolution solution = SolveWithCbc(milp, options);
    EXPECT_FALSE(solution.x.empty());
    EXPECT_LE(solution.objective, best + 1e-6);
    EXPECT_LE(solution.bound, solution.objective);
  }
}

TEST(CbcLimits, StartsFromAKnownSolution) {
  const Milp milp = Hard();
  CbcOptions options;
  options.limits.node_limit = 500;
  const MilpSolution good = SolveWithCbc(milp, options);
  ASSERT_FALSE(good.x.empty());

  options.warm_start = good.x;
  for (const int64_t limit : {0, 1}) {
    options.limits.node_limit = limit;
    const MilpSolution solution = SolveWithCbc(milp, options);
    EXPECT_LE(solution.objective, good.objective);
    EXPECT_EQ(solution.stopped_by, StoppedBy::kNodes);
  }
  options.limits.time_limit_s = 1e-6;
  const MilpSolution solution = SolveWithCbc(milp, options);
  EXPECT_EQ(solution.objective, good.objective);
  EXPECT_EQ(solution.stopped_by, StoppedBy::kTime);
}

TEST(CbcLimits, StopsAtOnceWhereTheKnownSolutionIsGoodEnough) {
  const Milp milp = Hard();
  CbcOptions options;
  options.limits.gap = 0.05;
  const MilpSolution good = SolveWithCbc(milp, options);
  options.warm_start = good.x;
  options.limits.gap = 0.2;
  const MilpSolution solution = SolveWithCbc(milp, options);
  EXPECT_EQ(solution.x, good.x);
  EXPECT_EQ(solution.nodes, 0);
  EXPECT_EQ(solution.stopped_by, StoppedBy::kGap);
}

TEST(CbcLimits, IgnoresAKnownSolutionThatIsNone) {
  std::mt19937 random(3);
  for (int i = 0; i < 40; ++i) {
    const Milp milp = RandomMilp(random, {.integers = 5, .rows = 4});
    CbcOptions options;
    options.warm_start = std::vector<double>(5, 1000.0);
    const MilpSolution solution = SolveWithCbc(milp, options);
    const std::optional<double> expected = BruteForce(milp);
    EXPECT_EQ(solution.status == MilpStatus::kOptimal, expected.has_value());
    if (expected) {
      EXPECT_NEAR(solution.objective, *expected, 1e-6);
    }
  }
}

TEST(CbcLimits, RejectsAKnownSolutionOfAnotherSize) {
  CbcOptions options;
  options.warm_start = std::vector<double>(3, 0.0);
  EXPECT_THROW(SolveWithCbc(Hard(), options), std::invalid_argument);
}

// The optimum is found from any solution, also with equalities and offsets.
void ExpectImprovements(bool is_careful) {
  std::mt19937 random(4);
  int started = 0;
  for (int i = 0; i < Repetitions(120); ++i) {
    const Milp milp = RandomMilp(
        random,
        {.integers = 5, .continuous = 1, .rows = 3, .equalities = i % 2 == 0});
    const std::optional<double> expected = BruteForce(milp);
    if (!expected) continue;
    Milp opposite = milp;
    for (Milp::Column& column : opposite.columns) column.cost *= -1;
    CbcOptions options{.limits = {}, .is_careful = is_careful};
    options.warm_start = SolveWithCbc(opposite).x;
    if (!IsFeasible(milp, *options.warm_start)) continue;
    ++started;
    const MilpSolution solution = SolveWithCbc(milp, options);
    SCOPED_TRACE(ToMps(milp));
    EXPECT_EQ(solution.status, MilpStatus::kOptimal);
    EXPECT_NEAR(solution.objective, *expected, 1e-6);
  }
  EXPECT_GT(started, Enough(60));
}

TEST(CbcLimits, ImprovesAnyKnownSolution) {
  ExpectImprovements(/*is_careful=*/false);
}

TEST(CbcLimits, ImprovesAnyKnownSolutionWithoutTheDriver) {
  ExpectImprovements(/*is_careful=*/true);
}

TEST(CbcLimits, HoldWithoutTheDriver) {
  const Milp milp = Hard();
  CbcOptions options{.limits = {}, .is_careful = true};
  options.limits.node_limit = 200;
  const MilpSolution nodes = SolveWithCbc(milp, options);
  ExpectStopped(milp, nodes, StoppedBy::kNodes);
  EXPECT_LE(nodes.nodes, 300);
  options.limits = {.time_limit_s = .5};
  options.warm_start = FirstItem(milp);
  const MilpSolution time = SolveWithCbc(milp, options);
  ExpectStopped(milp, time, StoppedBy::kTime);
  EXPECT_LE(time.objective, ObjectiveValue(milp, FirstItem(milp)));
}

TEST(CbcLimits, ReportsProgress) {
  const Milp milp = Hard();
  std::vector<SearchProgress> reports;
  CbcOptions options;
  options.limits.time_limit_s = 1;
  options.limits.on_progress = [&reports](const SearchProgress& progress) {
    reports.push_back(progress);
  };
  const MilpSolution solution = SolveWithCbc(milp, options);
  ASSERT_GT(reports.size(), 2u);
  for (size_t i = 0; i < reports.size(); ++i) {
    EXPECT_LE(reports[i].bound, reports[i].best);
    if (i == 0) continue;
    EXPECT_LE(reports[i].best, reports[i - 1].best);
    EXPECT_GE(reports[i].bound, reports[i - 1].bound);
    EXPECT_GE(reports[i].seconds, reports[i - 1].seconds);
    EXPECT_GE(reports[i].nodes, reports[i - 1].nodes);
  }
  EXPECT_NEAR(reports.back().best, solution.objective, 1e-6);
}

TEST(CbcLimits, ReportsOnceWhereThereIsNothingToSearch) {
  int reports = 0;
  CbcOptions options;
  options.limits.on_progress = [&reports](const SearchProgress& progress) {
    ++reports;
    EXPECT_EQ(progress.best, 0);
  };
  SolveWithCbc(Milp{}, options);
  EXPECT_EQ(reports, 1);
}

TEST(CbcLimits, PassesOnWhatProgressThrows) {
  CbcOptions options;
  options.limits.on_progress = [](const SearchProgress& progress) {
    if (progress.best < kInfinity) throw std::logic_error("enough");
  };
  EXPECT_THROW(SolveWithCbc(Hard(), options), std::logic_error);
}

}  // namespace
}  // namespace acplan::solver
