#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_simulation.h"
#include "problems/check/remat_check.h"
#include "problems/remat/remat_problem.h"
#include "problems/remat/remat_search.h"
#include "tests/support/random_joint.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::JointGraph;
using graph::JointRun;
using graph::JointSimulator;
using solver::SearchStatus;
using test_support::RandomJoint;

constexpr double kInfiniteMs = std::numeric_limits<double>::infinity();

// Simulates every choice of kept values that no rule forbids.
std::vector<JointRun> AllRuns(const JointGraph& graph) {
  const RematProblem problem = BuildRematProblem(graph);
  const JointSimulator simulator(graph);
  std::vector<int32_t> free;
  for (const RematValue& value : problem.values)
    if (value.may_keep) free.push_back(value.buffer);
  std::vector<JointRun> runs;
  for (uint32_t choice = 0; choice < 1U << free.size(); ++choice) {
    std::vector<char> is_kept(graph.buffers.size(), 0);
    for (size_t i = 0; i < free.size(); ++i)
      is_kept[free[i]] = choice >> i & 1U;
    try {
      runs.push_back(simulator.Run(is_kept));
    } catch (const InputError&) {
      continue;
    }
  }
  return runs;
}

// Simulates every choice of what the first run of a graph keeps, with the same
// choice for the others.
std::vector<JointRun> AllTiedRuns(const JointGraph& graph) {
  const JointSimulator simulator(graph);
  std::vector<std::vector<int32_t>> free;
  std::vector<size_t> place(graph.buffers.size(), 0);
  for (const graph::JointNode& node : graph.nodes) {
    if (node.stage == graph::JointStage::kBackward) continue;
    for (size_t i = 0; i < node.makes.size(); ++i) {
      const int32_t b = node.makes[i];
      if (node.tied_to) {
        const int32_t first = graph.nodes[*node.tied_to].makes[i];
        place[b] = place[first];
        free[place[b]].push_back(b);
      } else {
        place[b] = free.size();
        free.push_back({b});
      }
    }
  }
  std::erase_if(free, [&](const std::vector<int32_t>& buffers) {
    return !graph.buffers[buffers[0]].may_keep;
  });
  std::vector<JointRun> runs;
  for (uint32_t choice = 0; choice < 1U << free.size(); ++choice) {
    std::vector<char> is_kept(graph.buffers.size(), 0);
    for (size_t i = 0; i < free.size(); ++i)
      for (const int32_t b : free[i]) is_kept[b] = choice >> i & 1U;
    try {
      runs.push_back(simulator.Run(is_kept));
    } catch (const InputError&) {
      continue;
    }
  }
  return runs;
}

double LeastMs(const std::vector<JointRun>& runs, int64_t budget) {
  double least = kInfiniteMs;
  for (const JointRun& run : runs)
    if (run.peak_bytes <= budget) least = std::min(least, run.recompute_ms);
  return least;
}

TEST(JointSimulation, IsThatOfARunWithCounts) {
  std::mt19937 random(1);
  for (int i = 0; i < 2000; ++i) {
    const JointGraph graph = RandomJoint(
        random, {.forward = 12, .backward = 10, .has_rules = false});
    const JointSimulator simulator(graph);
    const RematProblem problem = BuildRematProblem(graph);
    std::vector<char> is_kept(graph.buffers.size(), 0);
    for (const RematValue& value : problem.values)
      is_kept[value.buffer] = random() % 2 == 0;
    const JointRun run = simulator.Run(is_kept);
    const RematEffect effect = ComputeRematEffect(graph, run.is_kept);
    ASSERT_EQ(run.peak_bytes, effect.peak_bytes) << ToJson(graph);
    ASSERT_EQ(run.kept_bytes, effect.kept_bytes) << ToJson(graph);
    ASSERT_DOUBLE_EQ(run.recompute_ms, effect.recompute_ms) << ToJson(graph);
    CheckRemat(graph, run.peak_bytes, run);
  }
}

TEST(Remat, IsWhatEnumerationFinds) {
  std::mt19937 random(2);
  int unproven = 0;
  int questions = 0;
  for (int i = 0; i < test_support::Repetitions(400); ++i) {
    const JointGraph graph = RandomJoint(
        random, {.forward = 7, .backward = 6, .has_rules = i % 2 == 0});
    const std::vector<JointRun> runs = AllRuns(graph);
    const RematProblem problem = BuildRematProblem(graph);
    std::vector<int64_t> peaks = {0};
    for (const JointRun& run : runs) peaks.push_back(run.peak_bytes);
    std::ranges::sort(peaks);
    peaks.erase(std::ranges::unique(peaks).begin(), peaks.end());
    for (const int64_t budget : peaks) {
      const RematAnswer answer = SolveRemat(problem, {.budget_bytes = budget});
      const double least = LeastMs(runs, budget);
      ++questions;
      if (answer.status == SearchStatus::kInfeasible) {
        ASSERT_EQ(least, kInfiniteMs) << budget << ToJson(graph);
        continue;
      }
      ASSERT_LE(answer.bound_ms, least + 1e-9) << budget << ToJson(graph);
      if (answer.status == SearchStatus::kNoSolution) {
        ++unproven;
        continue;
      }
      CheckRemat(graph, budget, answer.run);
      ASSERT_GE(answer.run.recompute_ms, least - 1e-9);
      if (answer.status == SearchStatus::kOptimal) {
        ASSERT_NEAR(answer.run.recompute_ms, least, 1e-9)
            << budget << ToJson(graph);
      } else {
        ++unproven;
      }
    }
  }
  EXPECT_LE(unproven * 50, questions);
  RecordProperty("asked", questions);
  RecordProperty("unproven", unproven);
}

// Runs of one graph keep the same buffers: tested by enumeration.
TEST(Remat, DecidesRunsOfOneGraphAsOne) {
  std::mt19937 random(5);
  int unproven = 0;
  int questions = 0;
  for (int i = 0; i < test_support::Repetitions(200); ++i) {
    const int count = 2 + i % 3;
    const JointGraph graph = test_support::RandomRuns(
        random, {.forward = 5, .backward = 5, .has_rules = i % 2 == 0}, count);
    const std::vector<JointRun> runs = AllTiedRuns(graph);
    const RematProblem problem = BuildRematProblem(graph);
    std::vector<int64_t> peaks = {0};
    for (const JointRun& run : runs) peaks.push_back(run.peak_bytes);
    std::ranges::sort(peaks);
    peaks.erase(std::ranges::unique(peaks).begin(), peaks.end());
    for (const int64_t budget : peaks) {
      const RematAnswer answer = SolveRemat(problem, {.budget_bytes = budget});
      const double least = LeastMs(runs, budget);
      ++questions;
      if (answer.status == SearchStatus::kInfeasible) {
        ASSERT_EQ(least, kInfiniteMs) << budget << ToJson(graph);
        continue;
      }
      ASSERT_LE(answer.bound_ms, least + 1e-9) << budget << ToJson(graph);
      if (answer.status != SearchStatus::kOptimal) {
        ++unproven;
        continue;
      }
      CheckRemat(graph, budget, answer.run);
      ASSERT_NEAR(answer.run.recompute_ms, least, 1e-9)
          << budget << ToJson(graph);
    }
  }
  EXPECT_GE(questions, test_support::Enough(1600));
  EXPECT_LE(unproven * 20, questions);
  RecordProperty("asked", questions);
  RecordProperty("unproven", unproven);
}

// Both the simulation and the check refuse a run that keeps a buffer that
// another one does not.
TEST(Remat, RefusesRunsOfOneGraphThatDiffer) {
  // a -> b -> c twice; backward reads b.
  JointGraph graph{.buffers = {{.name = "x"}, {.name = "g"}}};
  for (int32_t run = 0; run < 2; ++run) {
    const std::string name = std::to_string(run);
    graph.buffers.push_back({.name = "b" + name, .bytes = 4});
    graph.nodes.push_back(
        {.name = "f" + name, .ms = 1, .reads = {0}, .makes = {2 + run}});
  }
  graph.buffers[1].is_from_backward = true;
  graph.nodes[1].tied_to = 0;
  graph.nodes.push_back({.name = "back",
                         .stage = graph::JointStage::kBackward,
                         .reads = {1, 2, 3}});
  const JointSimulator simulator(graph);
  const std::vector<char> differing = {0, 0, 1, 0};
  EXPECT_THROW(simulator.Run(differing), InputError);
  EXPECT_THROW(ComputeRematEffect(graph, differing), std::logic_error);
  for (const char is_kept : {char{0}, char{1}}) {
    const std::vector<char> kept_alike = {0, 0, is_kept, is_kept};
    EXPECT_EQ(simulator.Run(kept_alike).recompute_ms, is_kept ? 0 : 2);
    EXPECT_EQ(ComputeRematEffect(graph, kept_alike).recompute_ms,
              is_kept ? 0 : 2);
  }
}

TEST(Remat, RefusesTiesOfNodesThatNeedEachOther) {
  JointGraph graph{.buffers = {{.name = "a"}, {.name = "b"}}};
  graph.nodes.push_back({.name = "first", .makes = {0}});
  graph.nodes.push_back(
      {.name = "second", .reads = {0}, .makes = {1}, .tied_to = 0});
  EXPECT_THROW(BuildRematProblem(graph), InputError);
}

TEST(Remat, KeepsNoMoreThanItMay) {
  std::mt19937 random(4);
  for (int i = 0; i < test_support::Repetitions(200); ++i) {
    const JointGraph graph = RandomJoint(
        random, {.forward = 7, .backward = 6, .has_rules = i % 2 == 0});
    const std::vector<JointRun> runs = AllRuns(graph);
    if (runs.empty()) continue;
    const RematProblem problem = BuildRematProblem(graph);
    // The budgets of some plan, and any peak.
    const JointRun& some = runs[random() % runs.size()];
    const int64_t any = std::numeric_limits<int64_t>::max() / 4;
    for (const int64_t peak : {some.peak_bytes + 2, any}) {
      for (const int64_t kept_bytes : {some.kept_bytes, some.kept_bytes / 2}) {
        double least = kInfiniteMs;
        for (const JointRun& run : runs)
          if (run.peak_bytes <= peak && run.kept_bytes <= kept_bytes)
            least = std::min(least, run.recompute_ms);
        const RematAnswer answer = SolveRemat(
            problem, {.budget_bytes = peak, .kept_bytes = kept_bytes});
        if (least == kInfiniteMs) {
          ASSERT_EQ(answer.status, SearchStatus::kInfeasible) << ToJson(graph);
          continue;
        }
        ASSERT_EQ(answer.status, SearchStatus::kOptimal) << ToJson(graph);
        ASSERT_LE(answer.run.kept_bytes, kept_bytes);
        ASSERT_NEAR(answer.run.recompute_ms, least, 1e-9) << ToJson(graph);
        CheckRemat(graph, peak, answer.run);
      }
    }
  }
}

TEST(Remat, FindsTheLeastBudget) {
  std::mt19937 random(3);
  for (int i = 0; i < test_support::Repetitions(200); ++i) {
    const JointGraph graph = RandomJoint(random, {.has_rules = i % 2 == 0});
    const std::vector<JointRun> runs = AllRuns(graph);
    const LeastRematBudget least =
        FindLeastRematBudget(BuildRematProblem(graph), {}, 0);
    int64_t peak = std::numeric_limits<int64_t>::max();
    for (const JointRun& run : runs) peak = std::min(peak, run.peak_bytes);
    ASSERT_EQ(least.exists, !runs.empty());
    if (runs.empty()) continue;
    ASSERT_EQ(least.bytes, peak) << ToJson(graph);
    ASSERT_EQ(least.bound_bytes, peak) << ToJson(graph);
  }
}

// An operator of either pass whose results nothing needs runs in neither.
TEST(Remat, HoldsWhatItHoldsWhereNothingRuns) {
  JointGraph graph{.held_bytes = 59};
  graph.buffers = {{.name = "x", .bytes = 780}};
  for (const bool has_node : {false, true}) {
    if (has_node) {
      graph.buffers.push_back({.name = "y", .bytes = 880});
      graph.nodes = {{.name = "n",
                      .stage = graph::JointStage::kEither,
                      .ms = 1,
                      .reads = {0},
                      .makes = {1}}};
    }
    const RematProblem problem = BuildRematProblem(graph);
    EXPECT_EQ(SolveRemat(problem, {.budget_bytes = 58}).status,
              SearchStatus::kInfeasible);
    const RematAnswer enough = SolveRemat(problem, {.budget_bytes = 59});
    EXPECT_EQ(enough.status, SearchStatus::kOptimal);
    EXPECT_EQ(enough.run.peak_bytes, 59);
    EXPECT_EQ(FindLeastRematBudget(problem, {}, 0).bytes, 59);
  }
}

}  // namespace
}  // namespace acplan::problems
