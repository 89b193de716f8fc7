#include "tests/problems/enumeration.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>
#include <string>

#include "graph/profile/module_tree.h"
#include "problems/check/plan_check.h"
#include "problems/planner.h"
#include "tests/support/asked_plan.h"
#include "tests/support/synthetic_profile.h"

namespace acplan::problems {
namespace {

using graph::ModuleTree;
using graph::Profile;
using test_support::RandomProfile;

// A random planning problem on a random profile.
struct Case {
  Profile profile;
  PlanOptions options = {};
  Enumeration enumeration;
  int64_t least_budget;  // whole bytes, with the reserve

  std::optional<double> LeastMs(int64_t budget_bytes) const {
    return enumeration.LeastMs(
        static_cast<double>(budget_bytes - options.reserve_bytes));
  }
};

std::vector<std::string> RandomNames(const Profile& profile,
                                     std::mt19937& random, unsigned one_in) {
  std::vector<std::string> names;
  for (const graph::Module& module : profile.modules) {
    if (random() % one_in == 0) names.push_back(module.fqn);
  }
  return names;
}

Case RandomCase(unsigned seed) {
  Case c{.profile = RandomProfile(seed),
         .options = {.granularity = Granularity::kModule,
                     .tradeoff = Tradeoff::kProfile},
         .enumeration = {},
         .least_budget = 0};
  std::mt19937 random(seed);
  const auto one_in = [&](unsigned n) { return random() % n == 0; };
  PlanOptions& options = c.options;
  if (!one_in(4)) options.memory.model = DefaultMemoryModel(c.profile);
  options.memory.world_size = int64_t{1} << random() % 4;
  options.memory.without_states = one_in(2);
  if (one_in(3)) options.max_units = static_cast<int>(random() % 4);
  if (one_in(4)) options.ac_units = RandomNames(c.profile, random, 2);
  if (one_in(4)) options.fsdp_units = RandomNames(c.profile, random, 5);
  if (one_in(4)) options.reserve_bytes = static_cast<int64_t>(random() % 1000);
  c.enumeration = EnumerationOf(c.profile, {.memory = options.memory,
                                            .ac_units = options.ac_units,
                                            .fsdp_units = options.fsdp_units,
                                            .max_units = options.max_units});
  c.least_budget =
      static_cast<int64_t>(std::ceil(c.enumeration.LeastBudget())) +
      options.reserve_bytes;
  double most = c.enumeration.fixed_bytes;
  for (const auto& record : c.enumeration.records) {
    most = std::max(most, record.bytes);
  }
  const double where = std::uniform_real_distribution<double>(0, 1.02)(random);
  options.budget_bytes =
      c.least_budget +
      std::llround(where * (most - c.enumeration.LeastBudget()));
  options.budget_bytes =
      std::max(options.budget_bytes, options.reserve_bytes + 1);
  return c;
}

void ExpectOptimal(const Case& c, const PlanOptions& options) {
  const ModuleTree tree(c.profile);
  const Plan plan = test_support::AskedPlan(c.profile, tree, options);
  const std::optional<double> least = c.LeastMs(options.budget_bytes);
  if (!least) {
    EXPECT_EQ(plan.status, PlanStatus::kInfeasible);
    EXPECT_EQ(plan.minimum_budget_bytes, c.least_budget);
    EXPECT_TRUE(plan.modules.empty());
    return;
  }
  ASSERT_EQ(plan.status, PlanStatus::kOptimal);
  EXPECT_NEAR(plan.recompute_ms, *least, 1e-6 * std::max(*least, 0.1));
  EXPECT_NEAR(plan.recompute_ms, MsOf(c.profile, plan.modules),
              1e-9 * std::max(*least, 1.0));
  EXPECT_EQ(plan.bound_ms, plan.recompute_ms);
  const double peak = PeakOf(c.profile, plan.modules, options.memory);
  EXPECT_LE(
      peak,
      static_cast<double>(options.budget_bytes - options.reserve_bytes) + 0.01);
  EXPECT_EQ(plan.peak_bytes, static_cast<int64_t>(std::ceil(peak - 0.01)));
  EXPECT_EQ(FirstBrokenRule(c.profile, plan,
                            {.ac_units = options.ac_units,
                             .fsdp_units = options.fsdp_units,
                             .max_units = options.max_units}),
            std::nullopt);
}

// Tests a budget inside the range of budgets, the lower end of it, and one byte
// below that.
void ExpectOptimalAroundTheLeastBudget(Case c) {
  ExpectOptimal(c, c.options);
  for (const int64_t budget : {c.least_budget, c.least_budget - 1}) {
    if (budget <= c.options.reserve_bytes) continue;
    c.options.budget_bytes = budget;
    ExpectOptimal(c, c.options);
  }
}

class RandomProfiles : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, RandomProfiles, ::testing::Range(0u, 10u));

TEST_P(RandomProfiles, ThePlanIsTheBestOfAllSets) {
  for (unsigned seed = 500 * GetParam(); seed < 500 * (GetParam() + 1);
       ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Case c = RandomCase(seed);
    if (!ModuleTree(c.profile).PostOrderMatchesTree() && seed % 10 != 0) {
      continue;
    }
    ExpectOptimalAroundTheLeastBudget(c);
    if (HasFailure()) break;
  }
}

TEST_P(RandomProfiles, CbcFindsTheBestOfAllSets) {
  for (unsigned seed = 40 * GetParam(); seed < 40 * (GetParam() + 1); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Case c = RandomCase(seed);
    c.options.engine = Engine::kCbc;
    ExpectOptimalAroundTheLeastBudget(std::move(c));
    if (HasFailure()) break;
  }
}

TEST(RandomProfilesKinds, AreAllThere) {
  int several_roots = 0;
  int identical_blocks = 0;
  int unmatched = 0;
  int held_count = 0;
  int infeasible = 0;
  int with_units = 0;
  for (unsigned seed = 0; seed < 500; ++seed) {
    const Case c = RandomCase(seed);
    const ModuleTree tree(c.profile);
    several_roots += tree.Roots().size() > 1;
    identical_blocks += !graph::IdenticalBlocks(c.profile, tree).empty();
    unmatched += !tree.PostOrderMatchesTree();
    held_count += std::ranges::any_of(
        c.enumeration.units,
        [](const auto& unit) { return unit.held_bytes > 0; });
    infeasible += c.least_budget - 1 > c.options.reserve_bytes;
    with_units += c.LeastMs(c.options.budget_bytes).value_or(0) > 0;
  }
  EXPECT_GT(several_roots, 50);
  EXPECT_GT(identical_blocks, 25);
  EXPECT_GT(unmatched, 10);
  EXPECT_GT(held_count, 25);
  EXPECT_GT(infeasible, 250);
  EXPECT_GT(with_units, 75);
}

TEST(Engines, AutoFallsBackToCbcWhereAModuleRunsElsewhere) {
  int unmatched = 0;
  for (unsigned seed = 0; seed < 300; ++seed) {
    const Case c = RandomCase(seed);
    const ModuleTree tree(c.profile);
    if (!tree.PostOrderMatchesTree()) {
      if (++unmatched > 5) break;
      EXPECT_EQ(test_support::AskedPlan(c.profile, tree, c.options).solver.name,
                "cbc");
    } else if (seed < 20) {
      EXPECT_EQ(test_support::AskedPlan(c.profile, tree, c.options).solver.name,
                "labels");
    }
  }
  EXPECT_GT(unmatched, 5);
}

}  // namespace
}  // namespace acplan::problems
