#include "tests/problems/operator_enumeration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <random>

#include "tests/support/operator_rules.h"
#include "tests/support/random_operators.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::OperatorPatterns;
using graph::SacStatistics;
using test_support::Enough;
using test_support::HasExactRuntimes;
using test_support::RandomOperators;
using test_support::RandomPatterns;
using test_support::Repetitions;

// Returns the first policy within a capacity, by comparing each two policies.
std::optional<OperatorEnumeration::Policy> BestOfAll(
    const SacStatistics& sac, const OperatorPatterns& patterns,
    int64_t capacity) {
  const size_t n = sac.memory.size();
  std::optional<OperatorEnumeration::Policy> best;
  for (uint32_t mask = 0; mask < uint32_t{1} << n; ++mask) {
    OperatorEnumeration::Policy policy;
    for (size_t k = 0; k < n; ++k) {
      policy.save.push_back(mask >> (n - 1 - k) & 1 ? 0 : 1);
      if (policy.save[k]) {
        policy.saved_bytes += sac.memory[k];
      } else {
        policy.recompute_ms += sac.runtimes[k];
      }
    }
    if (policy.saved_bytes > capacity ||
        !test_support::KeepsRules(sac, patterns, policy.save)) {
      continue;
    }
    if (!best || policy.recompute_ms < best->recompute_ms ||
        (policy.recompute_ms == best->recompute_ms &&
         policy.saved_bytes < best->saved_bytes)) {
      best = std::move(policy);
    }
  }
  return best;
}

TEST(OperatorEnumeration, AgreesWithTheBestOfAllPolicies) {
  std::mt19937 random(21);
  int infeasible = 0;
  for (int round = 0; round < Repetitions(500) && !HasFailure(); ++round) {
    SCOPED_TRACE(round);
    const SacStatistics sac =
        RandomOperators(random, {.most_ops = 8, .most_memory = 20});
    const OperatorPatterns patterns =
        round % 2 == 0 ? OperatorPatterns() : RandomPatterns(random);
    const OperatorEnumeration all(sac, patterns);
    for (const int64_t capacity : {0, 5, 20, 50, 200}) {
      const auto expected = BestOfAll(sac, patterns, capacity);
      const auto best = all.Best(capacity);
      ASSERT_EQ(best.has_value(), expected.has_value());
      if (!expected) {
        ++infeasible;
        continue;
      }
      EXPECT_EQ(best->save, expected->save);
      EXPECT_EQ(best->saved_bytes, expected->saved_bytes);
      EXPECT_EQ(best->recompute_ms, expected->recompute_ms);
    }
  }
  EXPECT_GT(infeasible, Enough(100));
}

TEST(RandomOperators, HaveEverything) {
  std::mt19937 random(22);
  int exact = 0;
  int forced = 0;
  int contradictory = 0;
  int many_policies = 0;
  int equals = 0;
  for (int round = 0; round < 500; ++round) {
    const SacStatistics sac = RandomOperators(random);
    const OperatorEnumeration all(sac);
    exact += HasExactRuntimes(sac);
    contradictory += all.Pareto().empty();
    forced += !all.Pareto().empty() && all.Pareto()[0].saved_bytes > 0;
    many_policies += all.Pareto().size() > 10;
    std::vector<int64_t> memory = sac.memory;
    std::ranges::sort(memory);
    equals += std::ranges::adjacent_find(memory) != memory.end();
  }
  EXPECT_GT(exact, 350);
  EXPECT_LT(exact, 450);
  EXPECT_GT(forced, 50);
  EXPECT_GT(contradictory, 25);
  EXPECT_LT(contradictory, 200);
  EXPECT_GT(many_policies, 100);
  EXPECT_GT(equals, 200);
}

}  // namespace
}  // namespace acplan::problems
