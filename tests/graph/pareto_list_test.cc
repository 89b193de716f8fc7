#include "graph/profile/pareto_list.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "graph/profile/profile.h"
#include "tests/graph/test_files.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::Enough;
using test_support::Repetitions;
using testing::ElementsAre;
using testing::FieldsAre;

OperatorGroups FreeGroups(
    const std::vector<std::pair<int64_t, double>>& costs) {
  OperatorGroups groups;
  for (const auto& [memory, runtime] : costs) {
    groups.groups.push_back({.ops = {static_cast<int>(groups.groups.size())},
                             .memory = memory,
                             .runtime = runtime});
  }
  return groups;
}

TEST(ParetoListTest, OfEightOperators) {
  SacStatistics sac;
  sac.func_names.assign(8, "op");
  sac.runtimes = {5, 5, 8, 15, 15, 9, 1, 5};
  sac.memory = {0, 100, 100, 120, 0, 100, 0, 0};
  sac.view_like_ops = {6};
  sac.rand_ops = {4};
  sac.inplace_ops = {{0, 0}, {7, 5}};
  const ParetoList list = ComputeParetoList(GroupOperators(sac));
  EXPECT_TRUE(list.is_complete);
  EXPECT_THAT(list.points, ElementsAre(FieldsAre(0, 43), FieldsAre(100, 29),
                                       FieldsAre(120, 28), FieldsAre(200, 21),
                                       FieldsAre(220, 14), FieldsAre(320, 6),
                                       FieldsAre(420, 1)));
  EXPECT_THAT(
      ParetoHull(GroupOperators(sac)),
      ElementsAre(FieldsAre(0, 43), FieldsAre(100, 29), FieldsAre(220, 14),
                  FieldsAre(320, 6), FieldsAre(420, 1)));
}

TEST(ParetoListTest, WithoutAChoice) {
  EXPECT_THAT(ComputeParetoList({}).points, ElementsAre(FieldsAre(0, 0)));
  EXPECT_THAT(ParetoHull({}), ElementsAre(FieldsAre(0, 0)));
  OperatorGroups groups = FreeGroups({{7, 2}, {5, 3}, {0, 9}, {4, 0}, {0, 0}});
  groups.groups[GroupId{0}].rule = GroupRule::kSave;
  groups.groups[GroupId{1}].rule = GroupRule::kRecompute;
  EXPECT_THAT(ComputeParetoList(groups).points, ElementsAre(FieldsAre(7, 3)));
  EXPECT_THAT(ParetoHull(groups), ElementsAre(FieldsAre(7, 3)));
}

TEST(ParetoListTest, EqualGroupsAreOnePointEach) {
  // Sums of .1 depend on their order.
  std::vector<std::pair<int64_t, double>> costs(100, {10, .1});
  costs.resize(150, {20, .7});
  const ParetoList list = ComputeParetoList(FreeGroups(costs));
  EXPECT_EQ(list.points.size(), 201);
  EXPECT_EQ(list.points.back(), (PolicyCost{2000, 0}));
  EXPECT_EQ(list.points.front().saved_bytes, 0);
  EXPECT_NEAR(list.points.front().recompute_ms, 45, 1e-11);
  EXPECT_THAT(ParetoHull(FreeGroups(costs)),
              ElementsAre(list.points.front(),
                          PolicyCost{1000, list.points[100].recompute_ms},
                          list.points.back()));
}

TEST(ParetoListTest, TinyAndHugeNumbers) {
  const int64_t bytes = int64_t{1} << 52;
  const ParetoList list = ComputeParetoList(
      FreeGroups({{bytes, 0x1p-1000}, {bytes - 1, 0x1p-1000}}));
  EXPECT_THAT(list.points, ElementsAre(FieldsAre(0, 0x1p-999),
                                       FieldsAre(bytes - 1, 0x1p-1000),
                                       FieldsAre(2 * bytes - 1, 0)));
  EXPECT_THAT(
      ComputeParetoList(FreeGroups({{1, 1e18}, {1, 1e18}})).points,
      ElementsAre(FieldsAre(0, 2e18), FieldsAre(1, 1e18), FieldsAre(2, 0)));
}

// The products of these ratios differ beyond the digits of a double.
TEST(ParetoListTest, RatiosThatAreNearlyEqual) {
  const int64_t a = (int64_t{1} << 50) - 1;
  const int64_t b = (int64_t{1} << 50) - 3;
  const double exact = 1 << 20;
  const OperatorGroups groups =
      FreeGroups({{a, static_cast<double>(a - 1) / exact},
                  {b, static_cast<double>(b - 1) / exact}});
  EXPECT_EQ(ParetoHull(groups).size(), 3);
  EXPECT_EQ(ParetoHull(FreeGroups({{a, 2}, {a, 2}, {a / 3, 1}})).size(), 3);
  EXPECT_EQ(ParetoHull(FreeGroups({{6 * a, 6}, {2 * a, 2}, {a, 1}})).size(), 2);
}

// Returns the largest subset of points on the lower convex hull; exact for
// small numbers.
std::vector<PolicyCost> LowerHull(const std::vector<PolicyCost>& points) {
  std::vector<PolicyCost> hull;
  for (const PolicyCost& point : points) {
    const auto is_above = [&] {
      const PolicyCost& a = hull[hull.size() - 2];
      const PolicyCost& b = hull.back();
      return (b.recompute_ms - a.recompute_ms) *
                 static_cast<double>(point.saved_bytes - a.saved_bytes) >=
             (point.recompute_ms - a.recompute_ms) *
                 static_cast<double>(b.saved_bytes - a.saved_bytes);
    };
    while (hull.size() > 1 && is_above()) hull.pop_back();
    hull.push_back(point);
  }
  return hull;
}

// Returns statistics in whole milliseconds, so that sums are exact.
SacStatistics RandomStatistics(std::mt19937& random) {
  const int n = 1 + static_cast<int>(random() % 12);
  const unsigned most = random() % 2 == 0 ? 5 : 1000;
  SacStatistics sac;
  for (int op = 0; op < n; ++op) {
    sac.func_names.emplace_back(1, static_cast<char>('a' + random() % 4));
    sac.runtimes.push_back(static_cast<double>(random() % most));
    sac.memory.push_back(random() % most);
    if (random() % 6 == 0) sac.view_like_ops.push_back(op);
    if (random() % 5 == 0) sac.rand_ops.push_back(op);
    if (random() % 5 == 0) {
      sac.inplace_ops.emplace_back(
          op, static_cast<int>(random() % static_cast<unsigned>(op + 1)));
    }
  }
  sac.force_store_random = random() % 3 == 0;
  return sac;
}

// Returns whether a policy (a bit for each saved operator) keeps the rules,
// from the statistics alone.
bool IsLegal(const SacStatistics& sac, const OperatorPatterns& patterns,
             unsigned policy) {
  const auto saves = [&](int op) { return (policy >> op & 1) != 0; };
  for (const int op : sac.view_like_ops) {
    if (saves(op)) return false;
  }
  for (const int op : sac.rand_ops) {
    if (saves(op) != saves(sac.rand_ops[0])) return false;
    if (sac.force_store_random && !saves(op)) return false;
  }
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent ? !saves(op) : saves(op) != saves(parent)) return false;
  }
  for (int op = 0; op < static_cast<int>(sac.memory.size()); ++op) {
    const std::string& name = sac.func_names[op];
    for (const std::string& pattern : patterns.save) {
      if (name == pattern && !saves(op)) return false;
    }
    for (const std::string& pattern : patterns.recompute) {
      if (name == pattern && saves(op)) return false;
    }
  }
  return true;
}

std::vector<PolicyCost> ByEnumeration(const SacStatistics& sac,
                                      const OperatorPatterns& patterns) {
  const size_t n = sac.memory.size();
  std::map<int64_t, double> least;
  for (unsigned policy = 0; policy < 1U << n; ++policy) {
    if (!IsLegal(sac, patterns, policy)) continue;
    PolicyCost cost;
    for (size_t op = 0; op < n; ++op) {
      if ((policy >> op & 1) != 0) {
        cost.saved_bytes += sac.memory[op];
      } else {
        cost.recompute_ms += sac.runtimes[op];
      }
    }
    const auto [place, is_new] =
        least.emplace(cost.saved_bytes, cost.recompute_ms);
    if (!is_new) place->second = std::min(place->second, cost.recompute_ms);
  }
  std::vector<PolicyCost> list;
  for (const auto& [bytes, ms] : least) {
    if (list.empty() || ms < list.back().recompute_ms) {
      list.push_back({bytes, ms});
    }
  }
  return list;
}

TEST(ParetoListTest, IsThatOfAllPolicies) {
  std::mt19937 random(29);
  int contradictions = 0;
  int long_lists = 0;
  for (int round = 0; round < Repetitions(4000); ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac = RandomStatistics(random);
    OperatorPatterns patterns;
    if (random() % 4 == 0) patterns.save = {"a"};
    if (random() % 4 == 0) patterns.recompute = {"b"};
    const OperatorGroups groups = GroupOperators(sac, patterns);
    const std::vector<PolicyCost> expected = ByEnumeration(sac, patterns);
    ASSERT_EQ(groups.contradiction.empty(), !expected.empty());
    if (expected.empty()) {
      ++contradictions;
      continue;
    }
    const ParetoList list = ComputeParetoList(groups);
    EXPECT_TRUE(list.is_complete);
    ASSERT_EQ(list.points, expected);
    EXPECT_EQ(ParetoHull(groups), LowerHull(expected));
    long_lists += expected.size() > 20;

    const ParetoList cut = ComputeParetoList(groups, expected.size() - 1);
    EXPECT_FALSE(cut.is_complete);
    EXPECT_EQ(cut.points, LowerHull(expected));
  }
  EXPECT_GT(contradictions, Enough(100));
  EXPECT_GT(long_lists, Enough(50));
}

TEST(ParetoListTest, GivesUpWhereTheListIsTooLong) {
  std::vector<std::pair<int64_t, double>> costs;
  for (int i = 0; i < 40; ++i) {
    costs.emplace_back(int64_t{1} << i, static_cast<double>(int64_t{1} << i));
  }
  const ParetoList list = ComputeParetoList(FreeGroups(costs), 1000);
  EXPECT_FALSE(list.is_complete);
  EXPECT_EQ(list.points, ParetoHull(FreeGroups(costs)));
  costs.resize(9);
  EXPECT_TRUE(ComputeParetoList(FreeGroups(costs), 1000).is_complete);
  EXPECT_EQ(ComputeParetoList(FreeGroups(costs), 1000).points.size(), 512);
}

TEST(ParetoListTest, OfEveryBundledModule) {
  for (const auto& path : RealProfiles()) {
    for (const Module& module : ReadProfile(path).modules) {
      if (!module.sac) continue;
      SCOPED_TRACE(path.filename().string() + " " + module.fqn);
      const OperatorGroups groups = GroupOperators(*module.sac);
      if (!groups.contradiction.empty()) continue;
      const ParetoList list = ComputeParetoList(groups, 2000);
      const std::vector<PolicyCost> hull = ParetoHull(groups);
      EXPECT_EQ(list.points.front(), hull.front());
      EXPECT_EQ(list.points.back(), hull.back());
      EXPECT_TRUE(std::ranges::is_sorted(list.points, std::ranges::less_equal(),
                                         &PolicyCost::saved_bytes));
      EXPECT_TRUE(std::ranges::is_sorted(list.points,
                                         std::ranges::greater_equal(),
                                         &PolicyCost::recompute_ms));
      for (const PolicyCost& corner : hull) {
        EXPECT_THAT(list.points, testing::Contains(corner));
      }
    }
  }
}

}  // namespace
}  // namespace acplan::graph
