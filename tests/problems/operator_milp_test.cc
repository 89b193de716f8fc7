#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "problems/engines/operator_checkpointing.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::OperatorPatterns;
using graph::SacStatistics;
using solver::SearchStatus;
using test_support::Enough;
using test_support::Repetitions;

bool IsIn(const std::vector<int>& list, int op) {
  return std::ranges::find(list, op) != list.end();
}

// Returns whether a name matches. Names are a, b, c ...; patterns are such
// names or "*".
bool Names(const std::vector<std::string>& patterns, const std::string& name) {
  return std::ranges::any_of(patterns, [&](const std::string& pattern) {
    return pattern == name || pattern == "*";
  });
}

bool IsLegal(const SacStatistics& sac, const OperatorPatterns& patterns,
             const std::vector<char>& save) {
  for (int op = 0; op < static_cast<int>(save.size()); ++op) {
    if (save[op] && IsIn(sac.view_like_ops, op)) return false;
    if (!save[op] && Names(patterns.save, sac.func_names[op])) return false;
    if (save[op] && Names(patterns.recompute, sac.func_names[op])) return false;
    if (!IsIn(sac.rand_ops, op)) continue;
    if (sac.force_store_random && !save[op]) return false;
    if (save[op] != save[sac.rand_ops[0]]) return false;
  }
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent && !save[op]) return false;
    if (save[op] != save[parent]) return false;
  }
  return true;
}

// Returns the least recomputation over all policies; nullopt if none is legal.
std::optional<double> LeastOperatorMs(const SacStatistics& sac,
                                      const OperatorPatterns& patterns,
                                      int64_t capacity) {
  const size_t n = sac.memory.size();
  std::optional<double> least;
  for (unsigned set = 0; set < 1u << n; ++set) {
    std::vector<char> save(n, 0);
    int64_t bytes = 0;
    double ms = 0;
    for (size_t op = 0; op < n; ++op) {
      save[op] = static_cast<char>(set >> op & 1);
      bytes += save[op] ? sac.memory[op] : 0;
      ms += save[op] ? 0 : sac.runtimes[op];
    }
    if (bytes <= capacity && (!least || ms < *least) &&
        IsLegal(sac, patterns, save)) {
      least = ms;
    }
  }
  return least;
}

struct RandomModule {
  SacStatistics sac;
  OperatorPatterns patterns;
  int64_t capacity = 0;
};

RandomModule Random(std::mt19937& random, int64_t unit) {
  const auto chance = [&](int one_in) { return random() % one_in == 0; };
  RandomModule result;
  SacStatistics& sac = result.sac;
  const int n = static_cast<int>(random() % 11);
  int64_t total = 0;
  for (int op = 0; op < n; ++op) {
    sac.func_names.push_back(std::string(1, static_cast<char>('a' + op % 5)));
    sac.memory.push_back(chance(5) ? 0 : unit * (1 + random() % 40));
    sac.runtimes.push_back(
        chance(5) ? 0 : static_cast<double>(random() % 1000) / 64);
    total += sac.memory.back();
    if (chance(6)) sac.view_like_ops.push_back(op);
    if (chance(4)) sac.rand_ops.push_back(op);
    if (chance(5)) {
      sac.inplace_ops.emplace_back(op, static_cast<int>(random() % (op + 1)));
    }
  }
  sac.force_store_random = chance(3);
  if (chance(4)) result.patterns.save.push_back(chance(2) ? "a" : "b");
  if (chance(4)) result.patterns.recompute.push_back(chance(2) ? "c" : "a");
  if (chance(30)) result.patterns.save.push_back("*");
  result.capacity = total;
  if (chance(8)) {
    result.capacity = 0;
  } else if (!chance(8)) {
    result.capacity = std::llround(static_cast<double>(total) *
                                   static_cast<double>(random() % 1000) / 1000);
    // A capacity that nearly fits, not a byte too little, and one that is a
    // byte too little.
    if (unit > 1) result.capacity = result.capacity / unit * unit;
    if (chance(3)) result.capacity = std::max<int64_t>(0, result.capacity - 1);
  }
  return result;
}

class OperatorMilp : public ::testing::TestWithParam<int64_t> {};
INSTANTIATE_TEST_SUITE_P(ByteSizes, OperatorMilp,
                         ::testing::Values(int64_t{1}, int64_t{1} << 32,
                                           int64_t{1} << 44));

TEST_P(OperatorMilp, FindsTheBestOfAllPolicies) {
  std::mt19937 random(7);
  int infeasible = 0;
  for (int round = 0; round < Repetitions(500); ++round) {
    SCOPED_TRACE(round);
    const auto [sac, patterns, capacity] = Random(random, GetParam());
    const std::optional<double> least =
        LeastOperatorMs(sac, patterns, capacity);
    const OperatorSolution solution =
        SolveOperatorsByCbc(sac, patterns, capacity);
    EXPECT_EQ(solution.engine, "cbc");
    if (!least) {
      ++infeasible;
      EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
    } else {
      ASSERT_EQ(solution.status, SearchStatus::kOptimal);
      EXPECT_NEAR(solution.policy.recompute_ms, *least, 1e-9);
      EXPECT_EQ(solution.bound_ms, solution.policy.recompute_ms);
      EXPECT_LE(solution.policy.saved_bytes, capacity);
      EXPECT_TRUE(IsLegal(sac, patterns, solution.policy.save));
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(infeasible, Enough(50));
}

TEST(OperatorMilp, StopsAtLimits) {
  std::mt19937 random(8);
  SacStatistics sac;
  for (int op = 0; op < 200; ++op) {
    sac.func_names.push_back("op");
    sac.memory.push_back(1'000'000 + random() % 1'000'000);
    sac.runtimes.push_back(1 + static_cast<double>(random() % 1'000'000) / 1e6);
  }
  solver::SearchLimits limits;
  limits.time_limit_s = 0;
  const OperatorSolution none =
      SolveOperatorsByCbc(sac, {}, 150'000'000, limits);
  EXPECT_EQ(none.status, SearchStatus::kNoSolution);
  EXPECT_EQ(none.stopped_by, solver::StoppedBy::kTime);
  limits = {};
  limits.gap = 0.5;
  const OperatorSolution some =
      SolveOperatorsByCbc(sac, {}, 150'000'000, limits);
  ASSERT_NE(some.status, SearchStatus::kNoSolution);
  EXPECT_LE(some.policy.saved_bytes, 150'000'000);
  EXPECT_LE(some.bound_ms, some.policy.recompute_ms);
  EXPECT_LE(some.policy.recompute_ms - some.bound_ms,
            0.5 * some.policy.recompute_ms);
}

TEST(CapacityOf, IsRoundedUp) {
  SacStatistics sac;
  sac.memory = {10, 3};
  sac.runtimes = {1, 1};
  sac.func_names = {"a", "b"};
  const graph::OperatorGroups groups = graph::GroupOperators(sac);
  EXPECT_EQ(CapacityOf(groups, 0), 0);
  EXPECT_EQ(CapacityOf(groups, 0.5), 7);
  EXPECT_EQ(CapacityOf(groups, 1), 13);
}

TEST(PolicyOf, AddsUpThreeOperators) {
  SacStatistics sac;
  sac.memory = {10, 3, 100};
  sac.runtimes = {1, 2, 4};
  const OperatorPolicy policy = PolicyOf(sac, {1, 0, 1});
  EXPECT_EQ(policy.saved_bytes, 110);
  EXPECT_EQ(policy.saved_ms, 5);
  EXPECT_EQ(policy.recompute_ms, 2);
  EXPECT_EQ(policy.save, (std::vector<char>{1, 0, 1}));
}

}  // namespace
}  // namespace acplan::problems
