#include "problems/engines/operator_checkpointing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <optional>
#include <random>
#include <set>
#include <string>

#include "graph/profile/profile.h"
#include "tests/problems/operator_enumeration.h"
#include "tests/support/operator_rules.h"
#include "tests/support/random_operators.h"
#include "tests/support/reference_data.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::GroupOperators;
using graph::OperatorGroups;
using graph::OperatorPatterns;
using graph::SacStatistics;
using solver::SearchStatus;
using test_support::BundledProfile;
using test_support::Enough;
using test_support::HasExactRuntimes;
using test_support::KeepsRules;
using test_support::RandomOperators;
using test_support::RandomPatterns;
using test_support::Repetitions;

// Expects that a policy's stated figures are true, and that it keeps rules and
// capacity.
void ExpectSound(const SacStatistics& sac, const OperatorPatterns& patterns,
                 const OperatorPolicy& policy, int64_t capacity) {
  ASSERT_EQ(policy.save.size(), sac.memory.size());
  EXPECT_TRUE(KeepsRules(sac, patterns, policy.save));
  int64_t bytes = 0;
  double saved_ms = 0;
  double recompute_ms = 0;
  for (size_t k = 0; k < sac.memory.size(); ++k) {
    if (policy.save[k]) {
      bytes += sac.memory[k];
      saved_ms += sac.runtimes[k];
    } else {
      recompute_ms += sac.runtimes[k];
    }
  }
  EXPECT_LE(bytes, capacity);
  EXPECT_EQ(policy.saved_bytes, bytes);
  EXPECT_NEAR(policy.saved_ms, saved_ms, 1e-12 * (1 + saved_ms));
  EXPECT_NEAR(policy.recompute_ms, recompute_ms, 1e-12 * (1 + recompute_ms));
}

void ExpectNearlyProven(const OperatorSolution& solution, double tolerance) {
  const double ms = solution.policy.recompute_ms;
  EXPECT_EQ(solution.stopped_by, solver::StoppedBy::kNothing);
  EXPECT_LE(solution.bound_ms, ms + 1e-12 * (1 + ms));
  EXPECT_GE(solution.bound_ms, ms - tolerance * (1 + ms));
}

// Returns capacities of nothing, of everything, around feasibility, and around
// the bytes of good policies.
std::set<int64_t> Capacities(const SacStatistics& sac,
                             const OperatorEnumeration& all,
                             std::mt19937& random) {
  const int64_t total =
      std::accumulate(sac.memory.begin(), sac.memory.end(), int64_t{0});
  std::set<int64_t> capacities = {0, total};
  const auto add_around = [&](int64_t bytes) {
    capacities.insert(bytes);
    if (bytes > 0) capacities.insert(bytes - 1);
  };
  add_around(all.Pareto().front().saved_bytes);
  add_around(all.Pareto().back().saved_bytes);
  for (int k = 0; k < 3; ++k) {
    add_around(all.Pareto()[random() % all.Pareto().size()].saved_bytes);
  }
  capacities.insert(static_cast<int64_t>(random()) % (total + 1));
  return capacities;
}

TEST(SolveOperators, FindsTheBestOfAllPolicies) {
  std::mt19937 random(31);
  int exact = 0;
  int infeasible = 0;
  for (int round = 0; round < 5000 && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    // With few different bytes there are many ties.
    const SacStatistics sac = RandomOperators(
        random, {.most_ops = 18, .most_memory = round % 2 == 0 ? 8 : 100000});
    const OperatorPatterns patterns =
        round % 4 == 0 ? RandomPatterns(random) : OperatorPatterns();
    const OperatorEnumeration all(sac, patterns);
    const OperatorGroups groups = GroupOperators(sac, patterns);
    ASSERT_EQ(groups.contradiction.empty(), !all.Pareto().empty());
    if (all.Pareto().empty()) continue;
    for (const int64_t capacity : Capacities(sac, all, random)) {
      SCOPED_TRACE(capacity);
      const OperatorSolution solution = SolveOperators(groups, capacity);
      const auto best = all.Best(capacity);
      EXPECT_EQ(solution.engine, "labels");
      if (!best) {
        ++infeasible;
        EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
        continue;
      }
      ASSERT_EQ(solution.status, SearchStatus::kOptimal);
      ExpectSound(sac, patterns, solution.policy, capacity);
      ExpectNearlyProven(solution, 1e-9);
      if (HasExactRuntimes(sac)) {
        ++exact;
        EXPECT_EQ(solution.policy.save, best->save);
        EXPECT_EQ(solution.policy.saved_bytes, best->saved_bytes);
        EXPECT_EQ(solution.policy.recompute_ms, best->recompute_ms);
      } else {
        EXPECT_NEAR(solution.policy.recompute_ms, best->recompute_ms,
                    1e-12 * (1 + best->recompute_ms));
      }
    }
  }
  EXPECT_GT(exact, 10000);
  EXPECT_GT(infeasible, 1000);
}

TEST(SolveOperatorsByCbc, FindsTheBestOfAllPolicies) {
  std::mt19937 random(32);
  int contradictory = 0;
  for (int round = 0; round < Repetitions(300) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac = RandomOperators(random, {.most_ops = 12});
    const OperatorPatterns patterns =
        round % 4 == 0 ? RandomPatterns(random) : OperatorPatterns();
    const OperatorEnumeration all(sac, patterns);
    const int64_t total =
        std::accumulate(sac.memory.begin(), sac.memory.end(), int64_t{0});
    if (all.Pareto().empty()) {
      ++contradictory;
      EXPECT_EQ(SolveOperatorsByCbc(sac, patterns, total).status,
                SearchStatus::kInfeasible);
      continue;
    }
    const int64_t least = all.Pareto().front().saved_bytes;
    for (const int64_t capacity : {least - 1, least, (least + total) / 2}) {
      if (capacity < 0) continue;
      SCOPED_TRACE(capacity);
      const OperatorSolution solution =
          SolveOperatorsByCbc(sac, patterns, capacity);
      const auto best = all.Best(capacity);
      EXPECT_EQ(solution.engine, "cbc");
      if (!best) {
        EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
        continue;
      }
      ASSERT_EQ(solution.status, SearchStatus::kOptimal);
      ExpectSound(sac, patterns, solution.policy, capacity);
      ExpectNearlyProven(solution, 1e-6);
      EXPECT_NEAR(solution.policy.recompute_ms, best->recompute_ms,
                  1e-6 * (1 + best->recompute_ms));
    }
  }
  EXPECT_GT(contradictory, Enough(20));
}

// Returns the example of PyTorch's estimator.
SacStatistics EightOperators() {
  SacStatistics sac;
  sac.func_names = {"copy_",          "add",    "div", "mm",
                    "native_dropout", "linear", "t",   "relu_"};
  sac.runtimes = {5, 5, 8, 15, 15, 9, 1, 5};
  sac.memory = {0, 100, 100, 120, 0, 100, 0, 0};
  sac.view_like_ops = {6};
  sac.rand_ops = {4};
  sac.inplace_ops = {{0, 0}, {7, 5}};
  return sac;
}

struct EightOperatorsCase {
  int64_t capacity;
  std::string policy;
  double recompute_ms;
};

class OnEightOperators : public ::testing::TestWithParam<EightOperatorsCase> {};
INSTANTIATE_TEST_SUITE_P(
    All, OnEightOperators,
    ::testing::Values(EightOperatorsCase{0, "10001000", 43},
                      EightOperatorsCase{100, "10001101", 29},
                      EightOperatorsCase{120, "10011000", 28},
                      EightOperatorsCase{200, "10101101", 21},
                      EightOperatorsCase{220, "10011101", 14},
                      EightOperatorsCase{320, "10111101", 6},
                      EightOperatorsCase{420, "11111101", 1}),
    [](const auto& test) {
      return "Capacity" + std::to_string(test.param.capacity);
    });

std::string ToText(const std::vector<char>& save) {
  std::string text;
  for (const char saved : save) text += saved ? '1' : '0';
  return text;
}

TEST_P(OnEightOperators, ThePolicyIsTheKnownOne) {
  const SacStatistics sac = EightOperators();
  const auto& [capacity, policy, recompute_ms] = GetParam();
  const OperatorGroups groups = GroupOperators(sac);
  EXPECT_EQ(CapacityOf(groups, static_cast<double>(capacity) / 420), capacity);
  for (const OperatorSolution& solution :
       {SolveOperators(groups, capacity),
        SolveOperatorsByCbc(sac, {}, capacity)}) {
    SCOPED_TRACE(solution.engine);
    EXPECT_EQ(solution.status, SearchStatus::kOptimal);
    EXPECT_EQ(ToText(solution.policy.save), policy);
    EXPECT_EQ(solution.policy.recompute_ms, recompute_ms);
    EXPECT_EQ(solution.policy.saved_ms, 63 - recompute_ms);
  }
  // More bytes change nothing until the next capacity of the table.
  EXPECT_EQ(ToText(SolveOperators(groups, capacity + 19).policy.save), policy);
}

TEST_P(OnEightOperators, TheOracleAgrees) {
  const auto best =
      OperatorEnumeration(EightOperators()).Best(GetParam().capacity);
  ASSERT_TRUE(best);
  EXPECT_EQ(ToText(best->save), GetParam().policy);
  EXPECT_EQ(best->recompute_ms, GetParam().recompute_ms);
}

TEST(PolicyOf, AddsUpWhatIsSavedAndRecomputed) {
  const OperatorPolicy policy =
      PolicyOf(EightOperators(), {1, 0, 1, 0, 1, 1, 0, 1});
  EXPECT_EQ(policy.save, (std::vector<char>{1, 0, 1, 0, 1, 1, 0, 1}));
  EXPECT_EQ(policy.saved_bytes, 200);
  EXPECT_EQ(policy.saved_ms, 42);
  EXPECT_EQ(policy.recompute_ms, 21);
}

// The 0-1 knapsacks of functorch's test_ac_knapsack.py: memory, run-time,
// capacity; the run-time of the saved operators, and their indices. The
// memories of one case are doubled, to be whole.
struct Knapsack {
  std::vector<int64_t> memory;
  std::vector<double> runtimes;
  int64_t capacity;
  double saved_ms;
  std::vector<int> saved;
};

class Knapsacks : public ::testing::TestWithParam<Knapsack> {};
INSTANTIATE_TEST_SUITE_P(
    Functorch, Knapsacks,
    ::testing::Values(
        Knapsack{{2, 3, 2, 4, 1}, {1, 2, 1, 3, 2}, 5, 5, {3, 4}},
        Knapsack{{1, 1, 1}, {1, 2, 3}, 3, 6, {0, 1, 2}},
        Knapsack{{10, 20, 30}, {1, 2, 3}, 5, 0, {}},
        Knapsack{{1, 2, 3}, {10, 20, 30}, 1, 10, {0}},
        Knapsack{{1, 1, 1}, {2, 2, 2}, 2, 4, {0, 1}},
        Knapsack{{0, 2, 3}, {5, 2, 3}, 5, 10, {0, 1, 2}},
        Knapsack{{1, 2, 3}, {0, 2, 3}, 3, 3, {2}},
        Knapsack{{100, 200, 300}, {1000, 2000, 3000}, 500, 5000, {1, 2}},
        Knapsack{{1, 3, 4}, {1, 2, 3}, 4, 3, {0, 1}},
        Knapsack{{}, {}, 10, 0, {}}, Knapsack{{1, 2, 3}, {1, 2, 3}, 0, 0, {}},
        Knapsack{{0, 0, 0}, {1, 2, 3}, 0, 6, {0, 1, 2}},
        Knapsack{{1, 2, 3}, {0, 0, 0}, 6, 0, {}}));

TEST_P(Knapsacks, AreSolvedAsFunctorchDoes) {
  const Knapsack& knapsack = GetParam();
  SacStatistics sac;
  sac.memory = knapsack.memory;
  sac.runtimes = knapsack.runtimes;
  sac.func_names.assign(sac.memory.size(), "op");
  std::vector<char> save(sac.memory.size(), 0);
  for (const int op : knapsack.saved) save[op] = 1;
  double total_ms = 0;
  for (const double ms : sac.runtimes) total_ms += ms;
  const OperatorSolution solution =
      SolveOperators(GroupOperators(sac), knapsack.capacity);
  EXPECT_EQ(solution.status, SearchStatus::kOptimal);
  EXPECT_EQ(solution.policy.save, save);
  EXPECT_EQ(solution.policy.saved_ms, knapsack.saved_ms);
  EXPECT_EQ(solution.policy.recompute_ms, total_ms - knapsack.saved_ms);
  const OperatorSolution by_cbc =
      SolveOperatorsByCbc(sac, {}, knapsack.capacity);
  EXPECT_EQ(by_cbc.status, SearchStatus::kOptimal);
  EXPECT_NEAR(by_cbc.policy.saved_ms, knapsack.saved_ms, 1e-6 * total_ms);
}

// Returns operators whose times are proportional to their bytes.
SacStatistics ProportionalOperators(std::mt19937& random, int count,
                                    int64_t unit, int64_t most_units) {
  SacStatistics sac;
  for (int k = 0; k < count; ++k) {
    const int64_t bytes =
        unit * (1 + static_cast<int64_t>(random() %
                                         static_cast<uint32_t>(most_units)));
    sac.func_names.push_back("op");
    sac.memory.push_back(bytes);
    sac.runtimes.push_back(static_cast<double>(bytes) * 0x1p-30);
  }
  return sac;
}

// Then times are least if the recomputed bytes, a sum of some of them, are.
TEST(SolveOperators, DecidesAmongManyTies) {
  std::mt19937 random(11);
  for (int round = 0; round < 50; ++round) {
    SCOPED_TRACE(round);
    constexpr int64_t kUnit = 1 << 16;
    const SacStatistics sac = ProportionalOperators(random, 60, kUnit, 800);
    const OperatorGroups groups = GroupOperators(sac, {});
    const int64_t total = groups.TotalBytes();
    const int64_t capacity = CapacityOf(groups, 0.1 + 0.016 * round);
    std::vector<char> is_reached(total / kUnit + 1, 0);
    is_reached[0] = 1;
    for (const int64_t bytes : sac.memory) {
      for (int64_t sum = total / kUnit; sum >= bytes / kUnit; --sum) {
        is_reached[sum] |= is_reached[sum - bytes / kUnit];
      }
    }
    int64_t least = (total - capacity + kUnit - 1) / kUnit;
    while (!is_reached[least]) ++least;
    const OperatorSolution solution = SolveOperators(groups, capacity);
    ASSERT_EQ(solution.status, SearchStatus::kOptimal);
    ExpectSound(sac, {}, solution.policy, capacity);
    EXPECT_EQ(total - solution.policy.saved_bytes, least * kUnit);
    if (HasFailure()) break;
  }
}

TEST(SolveOperators, StopsOnLimitsWithABoundAndAPolicy) {
  std::mt19937 random(12);
  int stopped = 0;
  for (int round = 0; round < 30; ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac = ProportionalOperators(random, 60, 1, 1 << 30);
    const OperatorGroups groups = GroupOperators(sac, {});
    const int64_t capacity = CapacityOf(groups, 0.03 * (round + 1));
    const OperatorSolution solution =
        SolveOperators(groups, capacity, {.node_limit = 200'000});
    ASSERT_TRUE(solution.status == SearchStatus::kFeasible ||
                solution.status == SearchStatus::kOptimal);
    ExpectSound(sac, {}, solution.policy, capacity);
    EXPECT_LE(solution.bound_ms, solution.policy.recompute_ms);
    EXPECT_GE(solution.bound_ms, 0.9 * solution.policy.recompute_ms);
    if (solution.status == SearchStatus::kFeasible) {
      EXPECT_EQ(solution.stopped_by, solver::StoppedBy::kNodes);
      ++stopped;
    }
  }
  EXPECT_GT(stopped, 10);
}

TEST(CapacityOf, RoundsTheShareOfAllBytesUp) {
  std::mt19937 random(33);
  for (int round = 0; round < Repetitions(2000) && !HasFailure(); ++round) {
    const SacStatistics sac = RandomOperators(
        random, {.most_memory = round % 2 == 0 ? 100 : int64_t{1} << 40});
    const OperatorGroups groups = GroupOperators(sac);
    const auto sum = static_cast<double>(
        std::accumulate(sac.memory.begin(), sac.memory.end(), int64_t{0}));
    std::vector<double> shares = {
        0, 1, std::uniform_real_distribution<double>(0, 1)(random)};
    for (int tenths = 1; tenths < 10; ++tenths) shares.push_back(tenths / 10.);
    for (const double share : shares) {
      EXPECT_EQ(CapacityOf(groups, share),
                static_cast<int64_t>(std::ceil(share * sum)))
          << share << " of " << sum;
    }
  }
}

TEST(ToOperatorMilp, HasABinaryAnOperatorAndTheRulesOneByOne) {
  std::mt19937 random(34);
  for (int round = 0; round < Repetitions(300) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac = RandomOperators(random, {.most_ops = 8});
    const OperatorPatterns patterns =
        round % 2 == 0 ? RandomPatterns(random) : OperatorPatterns();
    const int64_t total =
        std::accumulate(sac.memory.begin(), sac.memory.end(), int64_t{0});
    const int64_t capacity = static_cast<int64_t>(random()) % (total + 1);
    const OperatorEnumeration all(sac, patterns);
    if (all.Pareto().empty()) continue;
    const solver::Milp milp = ToOperatorMilp(sac, patterns, capacity);
    solver::ValidateMilp(milp);
    const size_t n = sac.memory.size();
    ASSERT_EQ(milp.columns.size(), n);
    std::vector<double> x(n);
    for (size_t policy = 0; policy < size_t{1} << n; ++policy) {
      std::vector<char> save(n);
      int64_t bytes = 0;
      for (size_t k = 0; k < n; ++k) {
        save[k] = policy >> k & 1;
        x[k] = save[k];
        if (save[k]) bytes += sac.memory[k];
      }
      EXPECT_EQ(solver::IsFeasible(milp, x, 1e-9),
                bytes <= capacity && KeepsRules(sac, patterns, save));
    }
  }
}

class BundledOperators : public ::testing::TestWithParam<std::string> {};
INSTANTIATE_TEST_SUITE_P(Profiles, BundledOperators,
                         ::testing::Values("bert_large", "gpt2_small",
                                           "llama8b", "resnet50",
                                           "transformer4",
                                           "transformer4_torchtest", "unet",
                                           "vit_large"),
                         [](const auto& test) { return test.param; });

TEST_P(BundledOperators, PoliciesAreLegalAndFallWithTheBudget) {
  std::vector<const SacStatistics*> seen_statistics;
  int with_recomputation = 0;
  for (const graph::Module& module : BundledProfile(GetParam()).modules) {
    if (!module.sac ||
        std::ranges::any_of(seen_statistics, [&](const auto* other) {
          return *other == *module.sac;
        })) {
      continue;
    }
    SCOPED_TRACE(module.fqn);
    const SacStatistics& sac = *module.sac;
    seen_statistics.push_back(&sac);
    const OperatorGroups groups = GroupOperators(sac);
    if (!groups.contradiction.empty()) continue;
    const int64_t forced = graph::ForcedSavedBytes(sac);
    double ms_at_smaller = std::numeric_limits<double>::infinity();
    for (int tenths = 0; tenths <= 10; ++tenths) {
      SCOPED_TRACE(tenths);
      const int64_t capacity = CapacityOf(groups, tenths / 10.0);
      const OperatorSolution solution = SolveOperators(groups, capacity);
      if (capacity < forced) {
        EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
        continue;
      }
      ASSERT_EQ(solution.status, SearchStatus::kOptimal);
      ExpectSound(sac, {}, solution.policy, capacity);
      ExpectNearlyProven(solution, 1e-9);
      const double ms = solution.policy.recompute_ms;
      EXPECT_LE(ms, ms_at_smaller + 1e-12 * (1 + ms));
      ms_at_smaller = ms;
      with_recomputation += ms > 0;
      if (sac.memory.size() > 60) continue;
      const OperatorSolution by_cbc = SolveOperatorsByCbc(sac, {}, capacity);
      ASSERT_EQ(by_cbc.status, SearchStatus::kOptimal);
      EXPECT_NEAR(by_cbc.policy.recompute_ms, ms, 1e-6 * std::max(ms, 1e-3));
    }
  }
  EXPECT_GT(seen_statistics.size(), 3u);
  EXPECT_GT(with_recomputation, 20);
}

}  // namespace
}  // namespace acplan::problems
