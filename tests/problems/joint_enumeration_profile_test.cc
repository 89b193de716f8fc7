#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "graph/profile/module_tree.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/engines/milp/joint_milp.h"
#include "problems/model/joint_problem.h"
#include "tests/problems/joint_profile_case.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using graph::ModuleTree;
using solver::SearchStatus;
using test_support::Enough;
using test_support::Repetitions;

BuiltJointProblem Build(const JointProfileCase& c, const ModuleTree& tree,
                        double budget) {
  JointProblemOptions options;
  options.memory = c.options.memory;
  options.budget_bytes = budget;
  options.ac_units = c.options.ac_units;
  options.fsdp_units = c.options.fsdp_units;
  options.max_units = c.options.max_units;
  options.patterns = c.options.patterns;
  return BuildJointProblem(c.profile, tree, options);
}

int UnitNamed(const JointProfileEnumeration& all, const std::string& fqn) {
  const auto unit_at =
      std::ranges::find(all.units, fqn, &JointProfileEnumeration::Unit::fqn);
  return unit_at == all.units.end()
             ? -1
             : static_cast<int>(unit_at - all.units.begin());
}

void ExpectPolicies(const JointProblem::Policies& policies,
                    const JointProfileEnumeration::Unit& unit,
                    const ModuleProblem::Node& node) {
  const auto& last = unit.policies.back();
  EXPECT_EQ(static_cast<double>(policies.MostBytes()), last.bytes);
  for (size_t k = 0; k < policies.kinds.size(); ++k) {
    EXPECT_GT(policies.kinds[k].bytes, 0);
    EXPECT_GE(policies.kinds[k].ms, 0);
    EXPECT_GE(policies.kinds[k].count, 1);
  }
  double before = 1;
  for (const auto& policy : unit.policies) {
    const double tolerance = 1e-9 * (1 + policy.ms);
    for (const double bytes : {before, policy.bytes}) {
      const std::vector<int> counts =
          policies.LeastCounts(static_cast<int64_t>(bytes));
      EXPECT_GE(static_cast<double>(policies.BytesOf(counts)), bytes);
      EXPECT_NEAR(policies.MsOf(counts), policy.ms, tolerance);
    }
    before = policy.bytes + 1;
    // The hull lies below the policy.
    EXPECT_LE(CurveCost(node.curve, policy.bytes), policy.ms + tolerance);
  }
  EXPECT_NEAR(node.curve.back().bytes, last.bytes, 1e-6);
  EXPECT_NEAR(node.curve.back().ms, last.ms, 1e-9 * (1 + last.ms));
  EXPECT_EQ(node.held_bytes, unit.held_bytes);
}

TEST(BuildJointProblem, HasThePoliciesOfTheCandidates) {
  int units = 0;
  for (unsigned seed = 0; seed < Repetitions(500) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const JointProfileCase c(seed);
    const ModuleTree tree(c.profile);
    const BuiltJointProblem built_problem = Build(c, tree, c.least_budget);
    const JointProblem& problem = built_problem.problem;
    EXPECT_EQ(problem.relaxed.prefix_structure, tree.PostOrderMatchesTree());
    ASSERT_EQ(std::ssize(problem.policies_of), tree.size());
    ASSERT_EQ(std::ssize(problem.relaxed.nodes), tree.size());
    ASSERT_EQ(std::ssize(built_problem.groups), tree.size());
    for (int i = 0; i < tree.size(); ++i) {
      const graph::Module& module = c.profile.modules[tree.node(i).module];
      SCOPED_TRACE(module.fqn);
      const int unit = UnitNamed(c.all, module.fqn);
      const int policies = problem.policies_of[i];
      if (policies < 0) {
        EXPECT_EQ(unit, -1);
        EXPECT_TRUE(problem.relaxed.nodes[i].curve.empty());
        continue;
      }
      if (unit < 0) {
        EXPECT_LE(problem.policies[policies].MostBytes(), 0);
        continue;
      }
      ++units;
      EXPECT_EQ(built_problem.groups[i].group_of.size(),
                module.sac->memory.size());
      ExpectPolicies(problem.policies[policies], c.all.units[unit],
                     problem.relaxed.nodes[i]);
    }
  }
  EXPECT_GT(units, Enough(500));
}

// Expects that the units are candidates, keep the budget, and cost as much as
// stated.
void ExpectValid(const JointProfileCase& c, const ModuleTree& tree,
                 double budget, const ModuleSolution& solution) {
  std::vector<std::pair<int, double>> chosen_units;
  double ms = 0;
  EXPECT_TRUE(std::ranges::is_sorted(solution.units, {}, &ChosenUnit::node));
  for (const ChosenUnit& unit : solution.units) {
    const int u =
        UnitNamed(c.all, c.profile.modules[tree.node(unit.node).module].fqn);
    ASSERT_GE(u, 0);
    for (const auto& [other, bytes] : chosen_units) {
      const auto& nested = c.all.units[std::max(u, other)].nested_with;
      EXPECT_EQ(std::ranges::count(nested, std::min(u, other)), 0);
      EXPECT_NE(u, other);
    }
    chosen_units.emplace_back(u, unit.net_bytes);
    ms += c.all.units[u].LeastMs(unit.net_bytes - 0.01);
  }
  EXPECT_LE(solution.units.size(),
            static_cast<size_t>(c.options.max_units.value_or(1000)));
  EXPECT_NEAR(solution.ms, ms, 1e-9 * (1 + ms));
  EXPECT_LE(c.all.Peak(chosen_units), budget + 0.01);
}

using Solve = std::function<ModuleSolution(const JointProblem&)>;

// Tests a budget in between, the least one, and one a byte below it.
void ExpectOptimalPlan(const JointProfileCase& c, const Solve& solve,
                       double tolerance) {
  const ModuleTree tree(c.profile);
  for (const double budget : c.Budgets()) {
    SCOPED_TRACE(budget);
    const ModuleSolution solution = solve(Build(c, tree, budget).problem);
    const std::optional<double> least = c.all.LeastMs(budget);
    if (!least) {
      EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
      EXPECT_TRUE(solution.units.empty());
      continue;
    }
    ASSERT_EQ(solution.status, SearchStatus::kOptimal);
    EXPECT_NEAR(solution.ms, *least, tolerance * std::max(*least, 1e-2));
    EXPECT_LE(solution.bound_ms, *least + tolerance * std::max(*least, 1e-2));
    ExpectValid(c, tree, budget, solution);
  }
}

ModuleSolution ByLabels(const JointProblem& problem) {
  return SolveJointByLabels(problem);
}

ModuleSolution ByCbc(const JointProblem& problem) {
  return SolveJointByCbc(problem);
}

class JointOnProfiles : public ::testing::TestWithParam<unsigned> {};
INSTANTIATE_TEST_SUITE_P(Seeds, JointOnProfiles, ::testing::Range(0u, 10u));

TEST_P(JointOnProfiles, LabelsFindTheBestOfAllPlans) {
  int solved = 0;
  for (unsigned seed = 300 * GetParam();
       seed < 300 * (GetParam() + 1) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const JointProfileCase c(seed);
    if (!ModuleTree(c.profile).PostOrderMatchesTree()) continue;
    ++solved;
    ExpectOptimalPlan(c, ByLabels, 1e-8);
  }
  EXPECT_TRUE(HasFailure() || solved >= 250) << solved;
}

TEST_P(JointOnProfiles, CbcFindsTheBestOfAllPlans) {
  for (unsigned seed = 20 * GetParam();
       seed < 20 * (GetParam() + 1) && !HasFailure(); ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    ExpectOptimalPlan(JointProfileCase(seed), ByCbc, 1e-6);
  }
}

}  // namespace
}  // namespace acplan::problems
