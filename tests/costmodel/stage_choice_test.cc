#include "costmodel/planning/stage_choice.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/support/repetitions.h"

namespace acplan::costmodel {
namespace {

using test_support::Enough;
using test_support::Repetitions;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Problem {
  std::vector<BlockChoice> choices;
  int64_t blocks = 1;
  double in_flight = 1;
  double capacity = 0;

  double Needed(const std::vector<int64_t>& counts) const {
    double sum = 0;
    double most = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      if (counts[i] == 0) continue;
      sum += static_cast<double>(counts[i]) * choices[i].bytes;
      most = std::max(most, choices[i].bytes);
    }
    return in_flight * sum - most;
  }

  double Cost(const std::vector<int64_t>& counts) const {
    double cost = 0;
    for (size_t i = 0; i < counts.size(); ++i) {
      cost += static_cast<double>(counts[i]) * choices[i].cost;
    }
    return cost;
  }

  void ForEachCounts(
      const std::function<void(const std::vector<int64_t>&)>& visit) const {
    std::vector<int64_t> counts(choices.size(), 0);
    const std::function<void(size_t, int64_t)> fill = [&](size_t i,
                                                          int64_t left) {
      if (i + 1 == counts.size()) {
        counts[i] = left;
        visit(counts);
        return;
      }
      for (counts[i] = 0; counts[i] <= left; ++counts[i]) {
        fill(i + 1, left - counts[i]);
      }
    };
    fill(0, blocks);
  }

  double LeastCost() const {
    double least = kInfinity;
    ForEachCounts([&](const std::vector<int64_t>& counts) {
      if (Needed(counts) <= capacity) least = std::min(least, Cost(counts));
    });
    return least;
  }
};

class Random {
 public:
  explicit Random(uint32_t seed) : engine_(seed) {}
  int64_t Int(int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(engine_);
  }
  double Real(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }

 private:
  std::mt19937 engine_;
};

// Small whole numbers, so that there are ties, points on a line, and capacities
// that are reached exactly.
Problem RandomProblem(Random& random) {
  Problem problem;
  problem.blocks = random.Int(1, 6);
  problem.in_flight = static_cast<double>(random.Int(4, 16)) / 4;
  const int64_t choices = random.Int(1, 6);
  const bool is_line = random.Int(0, 3) == 0;
  double bytes = static_cast<double>(random.Int(0, 4));
  double cost = static_cast<double>(random.Int(20, 60));
  for (int64_t i = 0; i < choices; ++i) {
    problem.choices.push_back({bytes, cost});
    bytes += is_line ? 2 : static_cast<double>(random.Int(1, 6));
    cost -= is_line ? 3 : static_cast<double>(random.Int(1, 8));
  }
  const auto needed = [&](const BlockChoice& choice) {
    return (problem.in_flight * static_cast<double>(problem.blocks) - 1) *
           choice.bytes;
  };
  const double least = needed(problem.choices.front());
  switch (random.Int(0, 5)) {
    case 0:
      problem.capacity = least;
      break;
    case 1:
      problem.capacity = least - 0.25;
      break;
    case 2:
      problem.capacity = needed(problem.choices.back());
      break;
    default:
      problem.capacity = random.Real(
          least - 1, std::max(least, needed(problem.choices.back())) + 1);
  }
  return problem;
}

void ExpectConsistent(const Problem& problem, const StageChoice& choice) {
  if (!choice.is_feasible) return;
  ASSERT_EQ(choice.counts.size(), problem.choices.size());
  EXPECT_EQ(
      std::accumulate(choice.counts.begin(), choice.counts.end(), int64_t{0}),
      problem.blocks);
  EXPECT_GE(std::ranges::min(choice.counts), 0);
  EXPECT_LE(problem.Needed(choice.counts), problem.capacity + 1e-9);
  EXPECT_NEAR(choice.cost, problem.Cost(choice.counts), 1e-9);
  EXPECT_LE(choice.bound, choice.cost);
}

TEST(StageChoice, WorkedByHand) {
  // f sum b - max b: 2 * (1 + 4) - 4 = 6 fits, 2 * (4 + 4) - 4 = 12 does not.
  const std::vector<BlockChoice> choices = {{1, 10}, {4, 1}};
  const StageChoice choice = ChooseForBlocks(choices, 2, 2, 6);
  ASSERT_TRUE(choice.is_feasible);
  EXPECT_EQ(choice.counts, (std::vector<int64_t>{1, 1}));
  EXPECT_EQ(choice.cost, 11);
  EXPECT_EQ(choice.bound, 11);
  EXPECT_FALSE(ChooseForBlocks(choices, 2, 2, 2.5).is_feasible);
}

TEST(StageChoice, IsTheLeastOfAllCounts) {
  Random random(1);
  int feasible = 0;
  for (int i = 0; i < Repetitions(20'000); ++i) {
    SCOPED_TRACE(i);
    const Problem problem = RandomProblem(random);
    const double least = problem.LeastCost();
    const StageChoice choice = ChooseForBlocks(
        problem.choices, problem.blocks, problem.in_flight, problem.capacity);
    ASSERT_EQ(choice.is_feasible, least < kInfinity);
    if (!choice.is_feasible) continue;
    ++feasible;
    ExpectConsistent(problem, choice);
    ASSERT_NEAR(choice.cost, least, 1e-9);
    ASSERT_NEAR(choice.bound, least, 1e-9);
  }
  EXPECT_GT(feasible, Enough(10'000));
}

TEST(StageChoice, IsTheLeastByDynamicProgramming) {
  Random random(3);
  int walked = 0;
  for (int i = 0; i < Repetitions(20'000); ++i) {
    SCOPED_TRACE(i);
    Problem problem = RandomProblem(random);
    const double unit = static_cast<double>(random.Int(1, 1000));
    for (BlockChoice& choice : problem.choices) choice.bytes *= unit;
    problem.capacity *= unit;
    const double least = problem.LeastCost();
    const auto choose = [&](double most_work) {
      return ChooseForBlocks(problem.choices, problem.blocks, problem.in_flight,
                             problem.capacity,
                             {.most_nodes = 1, .most_work = most_work});
    };
    const StageChoice choice = choose(1e9);
    ASSERT_EQ(choice.is_feasible, least < kInfinity);
    if (!choice.is_feasible) continue;
    ExpectConsistent(problem, choice);
    ASSERT_NEAR(choice.cost, least, 1e-9);
    ASSERT_NEAR(choice.bound, least, 1e-9);
    const StageChoice stopped = choose(0);
    walked += stopped.bound < stopped.cost ? 1 : 0;
  }
  EXPECT_GT(walked, Enough(1'000));
}

// A sum of the steps of many blocks leaves the line far behind unless they are
// walked in a good order.
TEST(StageChoice, BothWaysAgreeOnManyBlocks) {
  Random random(4);
  int walked = 0;
  for (int i = 0; i < Repetitions(300); ++i) {
    SCOPED_TRACE(i);
    Problem problem;
    problem.blocks = random.Int(10, 60);
    problem.in_flight = random.Real(1, 6);
    double bytes = static_cast<double>(random.Int(0, 20));
    double cost = 1000;
    for (int64_t c = random.Int(3, 9); c > 0; --c) {
      problem.choices.push_back({bytes, cost});
      bytes += static_cast<double>(random.Int(1, 90));
      cost -= random.Real(1, 100);
    }
    const double most = problem.in_flight * static_cast<double>(problem.blocks);
    problem.capacity =
        std::lerp((most - 1) * problem.choices.front().bytes,
                  (most - 1) * problem.choices.back().bytes, random.Real(0, 1));
    const auto choose = [&](int64_t most_nodes, double most_work) {
      return ChooseForBlocks(
          problem.choices, problem.blocks, problem.in_flight, problem.capacity,
          {.most_nodes = most_nodes, .most_work = most_work});
    };
    const StageChoice nodes = choose(10'000'000, 0);
    const StageChoice steps = choose(1, 1e9);
    ASSERT_TRUE(nodes.is_feasible);
    ExpectConsistent(problem, nodes);
    ExpectConsistent(problem, steps);
    ASSERT_NEAR(nodes.bound, nodes.cost, 1e-9);
    ASSERT_NEAR(steps.bound, steps.cost, 1e-9);
    ASSERT_NEAR(nodes.cost, steps.cost, 1e-6);
    walked += choose(1, 0).bound < steps.cost - 1e-9 ? 1 : 0;
  }
  EXPECT_GT(walked, Enough(200));
}

TEST(StageChoice, StaysSoundWhereItStopsEarly) {
  Random random(2);
  int unproven = 0;
  for (int i = 0; i < Repetitions(20'000); ++i) {
    SCOPED_TRACE(i);
    const Problem problem = RandomProblem(random);
    const double least = problem.LeastCost();
    const int64_t most_nodes = random.Int(1, 3);
    const StageChoice choice = ChooseForBlocks(
        problem.choices, problem.blocks, problem.in_flight, problem.capacity,
        {.most_nodes = most_nodes, .most_work = 0});
    ASSERT_EQ(choice.is_feasible, least < kInfinity);
    if (!choice.is_feasible) continue;
    ExpectConsistent(problem, choice);
    ASSERT_LE(least, choice.cost + 1e-9);
    ASSERT_LE(choice.bound, least + 1e-9);
    unproven += choice.bound < choice.cost - 1e-9 ? 1 : 0;
  }
  EXPECT_GT(unproven, Enough(100));
}

}  // namespace
}  // namespace acplan::costmodel
