#include "graph/sac_statistics.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <vector>

namespace acplan::graph {
namespace {

SacStatistics WithMemory(std::vector<int64_t> memory) {
  SacStatistics sac;
  sac.memory = std::move(memory);
  sac.runtimes.assign(sac.memory.size(), 1.0);
  sac.func_names.assign(sac.memory.size(), "op");
  return sac;
}

TEST(ForcedSavedBytes, IsZeroWithoutConstraints) {
  EXPECT_EQ(ForcedSavedBytes(SacStatistics()), 0);
  EXPECT_EQ(ForcedSavedBytes(WithMemory({1, 2, 4})), 0);
}

TEST(ForcedSavedBytes, TakesOperatorsInPlaceOnThemselves) {
  SacStatistics sac = WithMemory({1, 2, 4});
  sac.inplace_ops = {{1, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 2);
}

TEST(ForcedSavedBytes, FollowsInPlacePairsFromAForcedOperator) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.inplace_ops = {{3, 2}, {2, 1}, {1, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 14);
}

TEST(ForcedSavedBytes, LeavesPairsThatAreNotForced) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.inplace_ops = {{1, 0}};
  EXPECT_EQ(ForcedSavedBytes(sac), 0);
}

TEST(ForcedSavedBytes, TakesRandomOperatorsWhenTheyMustBeStored) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.rand_ops = {1, 3};
  EXPECT_EQ(ForcedSavedBytes(sac), 0);
  sac.force_store_random = true;
  EXPECT_EQ(ForcedSavedBytes(sac), 10);
  sac.inplace_ops = {{2, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 14);
}

TEST(ForcedSavedBytes, TiesRandomOperatorsToEachOther) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.rand_ops = {1, 3};
  sac.inplace_ops = {{1, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 10);
}

TEST(ForcedSavedBytes, NeverCountsNorFollowsViewLikeOperators) {
  SacStatistics sac = WithMemory({1, 2, 4, 8});
  sac.view_like_ops = {1};
  sac.inplace_ops = {{0, 0}, {1, 0}, {2, 1}, {1, 1}};
  EXPECT_EQ(ForcedSavedBytes(sac), 1);
  sac.rand_ops = {1, 3};
  sac.force_store_random = true;
  EXPECT_EQ(ForcedSavedBytes(sac), 9);
}

// The example of PyTorch's greedy order: only copy_ is stored whatever happens.
TEST(ForcedSavedBytes, OnPyTorchsEightOperators) {
  SacStatistics sac = WithMemory({0, 100, 100, 120, 0, 100, 0, 0});
  sac.view_like_ops = {6};
  sac.rand_ops = {4};
  sac.inplace_ops = {{0, 0}, {7, 5}};
  EXPECT_EQ(ForcedSavedBytes(sac), 0);
  sac.memory[0] = 64;
  EXPECT_EQ(ForcedSavedBytes(sac), 64);
}

// The least memory that a policy can save, by trying all.
int64_t LeastSaved(const SacStatistics& sac) {
  const int n = static_cast<int>(sac.memory.size());
  auto is_in = [](const std::vector<int>& set, int op) {
    return std::ranges::find(set, op) != set.end();
  };
  int64_t least = INT64_MAX;
  for (int policy = 0; policy < 1 << n; ++policy) {
    auto saves = [&](int op) { return (policy >> op & 1) != 0; };
    bool legal = true;
    int64_t bytes = 0;
    for (int op = 0; op < n; ++op) {
      const bool is_view = is_in(sac.view_like_ops, op);
      legal = legal && !(is_view && saves(op));
      if (is_view || !is_in(sac.rand_ops, op)) continue;
      legal = legal && !(sac.force_store_random && !saves(op));
      for (int other : sac.rand_ops)
        if (!is_in(sac.view_like_ops, other))
          legal = legal && saves(op) == saves(other);
    }
    for (auto [op, parent] : sac.inplace_ops) {
      if (is_in(sac.view_like_ops, op) || is_in(sac.view_like_ops, parent))
        continue;
      legal = legal && (op == parent ? saves(op) : saves(op) == saves(parent));
    }
    for (int op = 0; op < n; ++op)
      if (saves(op)) bytes += sac.memory[op];
    if (legal) least = std::min(least, bytes);
  }
  return least;
}

TEST(ForcedSavedBytes, IsTheLeastThatAnyPolicySaves) {
  std::mt19937 random(3);
  for (int round = 0; round < 500; ++round) {
    const int n = 1 + static_cast<int>(random() % 8);
    std::vector<int64_t> memory;
    for (int i = 0; i < n; ++i) memory.push_back(1 << i);
    SacStatistics sac = WithMemory(memory);
    for (int i = 0; i < n; ++i) {
      if (random() % 5 == 0) sac.view_like_ops.push_back(i);
      if (random() % 4 == 0) sac.rand_ops.push_back(i);
      if (random() % 3 == 0)
        sac.inplace_ops.emplace_back(i, static_cast<int>(random() % (i + 1)));
    }
    sac.force_store_random = random() % 2 == 0;
    EXPECT_EQ(ForcedSavedBytes(sac), LeastSaved(sac)) << "round " << round;
  }
}

}  // namespace
}  // namespace acplan::graph
