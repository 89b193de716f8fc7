#include "problems/remat/remat_offload.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/joint/joint_graph.h"
#include "graph/joint/joint_moves.h"
#include "graph/joint/joint_simulation.h"
#include "problems/check/remat_check.h"
#include "problems/remat/link_use.h"
#include "problems/remat/move_fit.h"
#include "problems/remat/remat_problem.h"
#include "tests/support/random_joint.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::JointGraph;
using graph::JointMove;
using graph::JointRun;
using graph::JointSimulator;
using graph::KeptLife;

constexpr double kInfiniteMs = std::numeric_limits<double>::infinity();

// A choice of what is kept, made again and moved.
struct Outcome {
  int64_t peak_bytes = 0;
  double cost_ms = 0;
};

// Lists the outcomes of all moves of a run, with copies at all times.
class AllMoves {
 public:
  AllMoves(const JointGraph& graph, const JointRun& run,
           double bytes_per_second, std::vector<Outcome>& outcomes)
      : graph_(graph),
        run_(run),
        bytes_per_second_(bytes_per_second),
        outcomes_(outcomes),
        lives_(MovableLives(graph, run)) {
    Add(0);
  }

 private:
  // Adds those that decide about the lives from `next` on.
  void Add(size_t next) {
    if (next == lives_.size()) {
      const JointRun moved_run = WithMoves(graph_, run_, moves_);
      const double stall_ms =
          StallMs(graph_, moved_run, graph::BothWays(bytes_per_second_));
      outcomes_.push_back(
          {moved_run.peak_bytes, moved_run.recompute_ms + stall_ms});
      return;
    }
    Add(next + 1);
    const KeptLife& life = lives_[next];
    const int32_t backward = graph::FirstOfBackward(run_);
    for (int32_t r = life.last_forward + 1; r <= backward; ++r) {
      for (int32_t f = std::max(backward, r + 1); f <= life.first_backward;
           ++f) {
        moves_.push_back({.buffer = life.buffer, .release = r, .fetch = f});
        Add(next + 1);
        moves_.pop_back();
      }
    }
  }

  const JointGraph& graph_;
  const JointRun& run_;
  const double bytes_per_second_;
  std::vector<Outcome>& outcomes_;
  const std::vector<KeptLife> lives_;
  std::vector<JointMove> moves_;
};

// Returns the outcomes of all choices.
std::vector<Outcome> AllOutcomes(const JointGraph& graph,
                                 double bytes_per_second) {
  const RematProblem problem = BuildRematProblem(graph);
  const JointSimulator simulator(graph);
  std::vector<int32_t> free;
  for (const RematValue& value : problem.values)
    if (value.may_keep) free.push_back(value.buffer);
  std::vector<Outcome> outcomes;
  for (uint32_t choice = 0; choice < 1U << free.size(); ++choice) {
    std::vector<char> is_kept(graph.buffers.size(), 0);
    for (size_t i = 0; i < free.size(); ++i)
      is_kept[free[i]] = choice >> i & 1U;
    try {
      const JointRun run = simulator.Run(is_kept);
      AllMoves(graph, run, bytes_per_second, outcomes);
    } catch (const InputError&) {
      continue;
    }
  }
  return outcomes;
}

TEST(JointMoves, HaveTheBytesOfARunWithCounts) {
  std::mt19937 random(7);
  int cases_with_moves = 0;
  for (int i = 0; i < 1000; ++i) {
    const JointGraph graph = test_support::RandomJoint(
        random, {.forward = 12, .backward = 10, .has_rules = false});
    const RematProblem problem = BuildRematProblem(graph);
    std::vector<char> is_kept(graph.buffers.size(), 0);
    for (const RematValue& value : problem.values)
      is_kept[value.buffer] = random() % 3 != 0;
    const JointRun run = JointSimulator(graph).Run(is_kept);
    const int32_t backward = graph::FirstOfBackward(run);
    std::vector<JointMove> moves;
    for (const KeptLife& life : MovableLives(graph, run)) {
      if (random() % 3 == 0) continue;
      const auto between = [&](int32_t least, int32_t most) {
        return least + static_cast<int32_t>(random() % (most - least + 1));
      };
      moves.push_back({.buffer = life.buffer,
                       .release = between(life.last_forward + 1, backward),
                       .fetch = between(backward, life.first_backward)});
    }
    const JointRun with_moves = WithMoves(graph, run, moves);
    const RematEffect effect =
        ComputeRematEffect(graph, is_kept, with_moves.moves);
    ASSERT_EQ(with_moves.peak_bytes, effect.peak_bytes) << ToJson(graph);
    ASSERT_EQ(WithMoves(graph, with_moves, {}), run);
    cases_with_moves += moves.empty() ? 0 : 1;
  }
  EXPECT_GE(cases_with_moves, 500);
}

TEST(JointMoves, AreRefusedAtOtherTimes) {
  // f makes b; g reads it, h does not; backward reads it last.
  JointGraph graph{.buffers = {{.name = "b", .bytes = 8}, {.name = "t"}}};
  graph.buffers[1].is_from_backward = true;
  graph.nodes = {{.name = "f", .ms = 1, .makes = {0}},
                 {.name = "g", .ms = 1, .reads = {0}},
                 {.name = "h", .ms = 1},
                 {.name = "k",
                  .stage = graph::JointStage::kBackward,
                  .ms = 1,
                  .reads = {1}},
                 {.name = "l",
                  .stage = graph::JointStage::kBackward,
                  .ms = 1,
                  .reads = {0}}};
  const JointRun run = JointSimulator(graph).Run({1, 0});
  const JointRun moved_run =
      WithMoves(graph, run, {{.buffer = 0, .release = 2, .fetch = 4}});
  EXPECT_EQ(moved_run.live_bytes, (std::vector<int64_t>{8, 8, 0, 0, 8}));
  // A copy takes 2 ms: it is 1 ms late both ways.
  EXPECT_DOUBLE_EQ(StallMs(graph, moved_run, graph::BothWays(4000)), 1 + 2);
  EXPECT_DOUBLE_EQ(
      StallMs(graph,
              WithMoves(graph, run, {{.buffer = 0, .release = 3, .fetch = 3}}),
              graph::BothWays(4000)),
      1);
  for (const JointMove& move : std::vector<JointMove>{
           {0, 1, 4}, {0, 4, 4}, {0, 2, 2}, {0, 2, 5}, {1, 2, 4}})
    EXPECT_THROW(WithMoves(graph, run, {move}), InputError);
  EXPECT_THROW(WithMoves(graph, run, {{0, 2, 4}, {0, 2, 4}}), InputError);
  graph.buffers[0].may_move = false;
  EXPECT_THROW(WithMoves(graph, run, {{0, 2, 4}}), InputError);
}

// The search is no proof; its bound is one.
TEST(RematOffload, IsNearWhatEnumerationFinds) {
  std::mt19937 random(3);
  int questions = 0;
  int best = 0;
  int missed = 0;
  double found_ms = 0;
  double least_ms = 0;
  for (int i = 0; i < test_support::Repetitions(100); ++i) {
    const JointGraph graph = test_support::RandomJoint(
        random, {.forward = 5, .backward = 4, .has_rules = i % 2 == 0});
    const double bytes_per_second = i % 3 == 0 ? 400 : i % 3 == 1 ? 2000 : 9000;
    const std::vector<Outcome> outcomes = AllOutcomes(graph, bytes_per_second);
    const RematProblem problem = BuildRematProblem(graph);
    std::vector<int64_t> peaks;
    for (const Outcome& outcome : outcomes) peaks.push_back(outcome.peak_bytes);
    std::ranges::sort(peaks);
    peaks.erase(std::ranges::unique(peaks).begin(), peaks.end());
    for (const int64_t budget : peaks) {
      double least = kInfiniteMs;
      for (const Outcome& outcome : outcomes)
        if (outcome.peak_bytes <= budget)
          least = std::min(least, outcome.cost_ms);
      const RematOffload answer =
          SolveRematOffload(problem, {.budget_bytes = budget},
                            {.rates = graph::BothWays(bytes_per_second)});
      ++questions;
      ASSERT_LE(answer.bound_ms, least + 1e-9) << budget << ToJson(graph);
      if (!answer.best) {
        ++missed;
        continue;
      }
      CheckRemat(graph, budget, answer.best->run);
      ASSERT_GE(answer.best->CostMs(), least - 1e-9);
      best += answer.best->CostMs() <= least + 1e-9 ? 1 : 0;
      found_ms += answer.best->CostMs();
      least_ms += least;
    }
  }
  EXPECT_GE(questions, test_support::Enough(200));
  EXPECT_GE((best + 2) * 100, questions * 95);
  EXPECT_LE((missed - 2) * 20, questions);
  EXPECT_LE(found_ms, least_ms * 1.01);
  RecordProperty("questions", questions);
  RecordProperty("best", best);
  RecordProperty("missed", missed);
  RecordProperty("above", std::to_string(found_ms / least_ms));
}

TEST(RematOffload, StaysWithinTheHostsMemory) {
  std::mt19937 random(4);
  for (int i = 0; i < 50; ++i) {
    const JointGraph graph = test_support::RandomJoint(
        random, {.forward = 12, .backward = 10, .has_rules = false});
    const RematProblem problem = BuildRematProblem(graph);
    const JointSimulator simulator(graph);
    const int64_t most = simulator.Run(simulator.AllKept()).peak_bytes;
    const RematOffload answer = SolveRematOffload(
        problem, {.budget_bytes = most * 3 / 4},
        {.rates = graph::BothWays(1e6), .host_memory_bytes = 9});
    if (answer.best) {
      EXPECT_LE(MovedBytes(graph, answer.best->run), 9);
    }
  }
}

TEST(RematOffload, RefusesStepsOfSeveralGraphs) {
  std::mt19937 random(5);
  const JointGraph graph =
      test_support::RandomRuns(random, {.forward = 4, .backward = 4}, 2);
  EXPECT_THROW(
      SolveRematOffload(BuildRematProblem(graph), {.budget_bytes = 1000},
                        {.rates = graph::BothWays(1)}),
      InputError);
}

}  // namespace
}  // namespace acplan::problems
