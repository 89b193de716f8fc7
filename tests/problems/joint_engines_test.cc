#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <random>
#include <ranges>
#include <stdexcept>

#include "problems/engines/labels/joint_labels.h"
#include "problems/engines/milp/joint_milp.h"
#include "problems/model/joint_problem.h"
#include "problems/model/joint_solution.h"
#include "tests/problems/abstract_problem.h"
#include "tests/problems/joint_enumeration.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using solver::SearchLimits;
using solver::SearchStatus;
using test_support::Enough;
using test_support::Repetitions;

// Adds groups to every unit with so few bytes that they are settled last, and
// lets the budget ask for some of them.
void AddSmallGroups(std::mt19937& random, JointProblem& problem) {
  const auto up_to = [&](int most) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(most));
  };
  for (JointProblem::Policies& policies : problem.policies) {
    for (int kind = up_to(2); kind > 0; --kind) {
      policies.kinds.push_back(
          {.bytes = up_to(40), .ms = up_to(64) / 1024.0, .count = up_to(2)});
    }
    std::ranges::stable_sort(policies.kinds,
                             [](const GroupKind& a, const GroupKind& b) {
                               return a.ms / static_cast<double>(a.bytes) <
                                      b.ms / static_cast<double>(b.bytes);
                             });
  }
  for (size_t i = 0; i < problem.policies_of.size(); ++i) {
    const int policies_index = problem.policies_of[i];
    if (policies_index >= 0)
      problem.relaxed.nodes[i].curve = HullOf(problem.policies[policies_index]);
  }
  problem.relaxed.budget_bytes -= up_to(120) - 30;
}

// Turns the policies of the kinds into points, some of them cheaper than their
// groups: then their cost is no sum.
void MakePoints(std::mt19937& random, JointProblem& problem) {
  for (JointProblem::Policies& policies : problem.policies) {
    std::map<int64_t, double> cheapest = {
        {policies.base_bytes, policies.base_ms}};
    for (const GroupKind& kind : policies.kinds) {
      const std::map<int64_t, double> before = cheapest;
      for (const auto& [bytes, ms] : before) {
        for (int n = 1; n <= kind.count; ++n) {
          const double less = random() % 3 == 0 ? .75 : 1;
          const double more_ms = ms + kind.ms * n * less;
          const auto [place, is_new] =
              cheapest.try_emplace(bytes + kind.bytes * n, more_ms);
          if (!is_new) place->second = std::min(place->second, more_ms);
        }
      }
    }
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [bytes, ms] : std::views::reverse(cheapest)) {
      if (ms >= least) continue;
      least = ms;
      policies.points.insert(policies.points.begin(), {bytes, ms});
    }
    policies.kinds.clear();
    policies.base_bytes = policies.points.front().bytes;
    policies.base_ms = policies.points.front().ms;
  }
  for (size_t i = 0; i < problem.policies_of.size(); ++i) {
    const int policies_index = problem.policies_of[i];
    if (policies_index < 0) continue;
    if (problem.policies[policies_index].MostBytes() > 0) {
      problem.relaxed.nodes[i].curve = HullOf(problem.policies[policies_index]);
    } else {
      problem.policies_of[i] = -1;
      problem.relaxed.nodes[i].curve.clear();
    }
  }
}

void ExpectPlan(const JointProblem& problem, const ModuleSolution& solution) {
  EXPECT_NEAR(JointCost(problem, solution.units), solution.ms,
              1e-9 * std::max(1.0, solution.ms));
  EXPECT_LE(SolutionPeak(problem.relaxed, solution.units),
            problem.relaxed.budget_bytes + 1e-6);
  EXPECT_LE(solution.bound_ms, solution.ms);
}

TEST(JointLabels, SettleSmallGroupsExactly) {
  std::mt19937 random(1);
  int with_units = 0;
  for (int round = 0; round < 6000; ++round) {
    SCOPED_TRACE(round);
    JointProblem problem =
        RandomJointProblem(random, {.forest = {.most_nodes = 6},
                                    .most_kinds = 2,
                                    .bytes_scale = int64_t{1} << 22});
    AddSmallGroups(random, problem);
    const ModuleSolution solution = SolveJointByLabels(problem);
    const std::optional<double> least = LeastJointMs(problem);
    if (!least) {
      EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
      continue;
    }
    ASSERT_EQ(solution.status, SearchStatus::kOptimal);
    EXPECT_NEAR(solution.ms, *least, 1e-9 * std::max(1.0, *least));
    ExpectPlan(problem, solution);
    with_units += solution.units.empty() ? 0 : 1;
    if (HasFailure()) break;
  }
  EXPECT_GT(with_units, 700);
}

TEST(JointLabels, ChooseAmongPointsExactly) {
  std::mt19937 random(4);
  int with_units = 0;
  for (int round = 0; round < Repetitions(6000); ++round) {
    SCOPED_TRACE(round);
    JointProblem problem = RandomJointProblem(
        random, {.forest = {.most_nodes = 6},
                 .most_kinds = 2,
                 .bytes_scale = int64_t{1} << (round % 2 == 0 ? 22 : 0)});
    if (round % 2 == 0) AddSmallGroups(random, problem);
    MakePoints(random, problem);
    const ModuleSolution solution = SolveJointByLabels(problem);
    const std::optional<double> least = LeastJointMs(problem);
    if (!least) {
      EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
      continue;
    }
    ASSERT_EQ(solution.status, SearchStatus::kOptimal);
    EXPECT_NEAR(solution.ms, *least, 1e-9 * std::max(1.0, *least));
    ExpectPlan(problem, solution);
    with_units += solution.units.empty() ? 0 : 1;
    if (HasFailure()) break;
  }
  EXPECT_GT(with_units, Enough(700));
}

TEST(JointEngines, AgreeOnLargerProblems) {
  std::mt19937 random(2);
  int with_units = 0;
  for (int round = 0; round < 1000; ++round) {
    SCOPED_TRACE(round);
    JointProblem problem = RandomJointProblem(
        random,
        {.forest = {.most_nodes = 25}, .most_kinds = 5, .most_equal = 3});
    const ModuleSolution labels = SolveJointByLabels(problem);
    const ModuleSolution cbc = SolveJointByCbc(problem, {.time_limit_s = 20});
    if (labels.status == SearchStatus::kInfeasible) {
      EXPECT_EQ(cbc.status, SearchStatus::kInfeasible);
      continue;
    }
    ASSERT_EQ(labels.status, SearchStatus::kOptimal);
    ExpectPlan(problem, labels);
    with_units += labels.units.empty() ? 0 : 1;
    // A problem that CBC could not prove in its time still has a bound and a
    // plan.
    EXPECT_LE(cbc.bound_ms, labels.ms + 1e-6 * std::max(1.0, labels.ms));
    if (cbc.status != SearchStatus::kNoSolution) {
      EXPECT_GE(cbc.ms, labels.ms - 1e-6 * std::max(1.0, labels.ms));
    }
    if (cbc.status == SearchStatus::kOptimal) {
      EXPECT_NEAR(cbc.ms, labels.ms, 2e-6 * std::max(1.0, labels.ms));
    }
    if (HasFailure()) break;
  }
  EXPECT_GT(with_units, 500);
}

TEST(JointLabels, StopOnLimitsWithABoundAndThePlanSoFar) {
  std::mt19937 random(3);
  int stopped = 0;
  for (int round = 0; round < Repetitions(300); ++round) {
    SCOPED_TRACE(round);
    JointProblem problem =
        RandomJointProblem(random, {.forest = {.most_nodes = 25},
                                    .most_kinds = 5,
                                    .bytes_scale = int64_t{1} << 22});
    if (round % 2 == 0) AddSmallGroups(random, problem);
    const ModuleSolution best = SolveJointByLabels(problem);
    if (best.status != SearchStatus::kOptimal) continue;
    for (const SearchLimits& limits :
         {SearchLimits{.node_limit = static_cast<int64_t>(random() % 400)},
          SearchLimits{.gap = 0.1}, SearchLimits{.time_limit_s = 0}}) {
      const ModuleSolution solution = SolveJointByLabels(problem, limits);
      EXPECT_LE(solution.bound_ms, best.ms * (1 + 1e-9) + 1e-9);
      stopped += solution.status != SearchStatus::kOptimal;
      if (solution.status == SearchStatus::kNoSolution) {
        EXPECT_EQ(limits.time_limit_s, 0);
        continue;
      }
      ExpectPlan(problem, solution);
      EXPECT_GE(solution.ms, best.ms * (1 - 1e-9) - 1e-9);
      if (limits.gap > 0) {
        EXPECT_LE(solution.ms - solution.bound_ms,
                  limits.gap * solution.ms * (1 + 1e-9) + 1e-9);
      }
    }
    // A search that starts from the optimum proves it.
    const ModuleSolution second = SolveJointByLabels(problem, {}, best.units);
    EXPECT_EQ(second.status, SearchStatus::kOptimal);
    EXPECT_NEAR(second.ms, best.ms, 1e-9 * std::max(1.0, best.ms));
    if (HasFailure()) break;
  }
  EXPECT_GT(stopped, Enough(100));
}

// If times are proportional to bytes, the relaxation is no help.
TEST(JointLabels, StopOnLimitsWherePoliciesTie) {
  std::mt19937 random(5);
  const auto up_to = [&](int64_t n) {
    return static_cast<int64_t>(random() % static_cast<uint32_t>(n)) + 1;
  };
  for (int round = 0; round < 20; ++round) {
    SCOPED_TRACE(round);
    JointProblem problem =
        RandomJointProblem(random, {.forest = {.most_nodes = 6}});
    for (JointProblem::Policies& policies : problem.policies) {
      policies = {};
      for (int k = 0; k < 60; ++k) {
        const int64_t bytes = up_to(1 << 30);
        policies.kinds.push_back(
            {.bytes = bytes, .ms = static_cast<double>(bytes) * 0x1p-28});
      }
    }
    double most = 0;
    for (size_t i = 0; i < problem.policies_of.size(); ++i) {
      const int policies_index = problem.policies_of[i];
      ModuleProblem::Node& node = problem.relaxed.nodes[i];
      if (policies_index < 0) continue;
      node.curve = HullOf(problem.policies[policies_index]);
      node.held_bytes = 0;
      most += node.curve.back().bytes;
    }
    for (ModuleProblem::Node& node : problem.relaxed.nodes) {
      node.base_bytes = most;
    }
    problem.relaxed.fixed_bytes = 0;
    problem.relaxed.budget_bytes = 0.7 * most;
    const ModuleSolution solution =
        SolveJointByLabels(problem, {.node_limit = 300'000});
    if (solution.status == SearchStatus::kInfeasible) continue;
    ASSERT_NE(solution.status, SearchStatus::kNoSolution);
    ExpectPlan(problem, solution);
    EXPECT_LE(solution.ms, 1.01 * solution.bound_ms);
  }
}

TEST(JointLabels, RefuseProblemsWithoutPrefixStructure) {
  std::mt19937 random(4);
  EXPECT_THROW(SolveJointByLabels(RandomJointProblem(
                   random, {.forest = {.prefix_structure = false}})),
               std::invalid_argument);
}

}  // namespace
}  // namespace acplan::problems
