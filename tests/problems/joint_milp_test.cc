#include "problems/engines/milp/joint_milp.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <optional>
#include <random>
#include <set>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/engines/milp/joint_form.h"
#include "tests/problems/abstract_problem.h"
#include "tests/problems/joint_enumeration.h"
#include "tests/support/repetitions.h"

namespace acplan::problems {
namespace {

using solver::SearchStatus;
using test_support::Enough;
using test_support::Repetitions;

// Returns whether the net bytes are those of a policy.
bool IsPolicy(const JointProblem::Policies& policies, double net_bytes) {
  std::set<double> sums = {static_cast<double>(policies.base_bytes)};
  for (const GroupKind& kind : policies.kinds) {
    for (int n = 0; n < kind.count; ++n) {
      std::set<double> more = sums;
      for (const double sum : sums) {
        more.insert(sum + static_cast<double>(kind.bytes));
      }
      sums = std::move(more);
    }
  }
  return sums.contains(net_bytes);
}

void ExpectBestPolicy(const JointProblem& problem,
                      const ModuleSolution& solution) {
  const std::optional<double> least = LeastJointMs(problem);
  EXPECT_EQ(solution.engine, "cbc");
  if (!least) {
    EXPECT_EQ(solution.status, SearchStatus::kInfeasible);
    return;
  }
  ASSERT_EQ(solution.status, SearchStatus::kOptimal);
  EXPECT_NEAR(solution.ms, *least, 1e-6 * std::max(1.0, *least));
  EXPECT_EQ(solution.bound_ms, solution.ms);
  EXPECT_LE(SolutionPeak(problem.relaxed, solution.units),
            problem.relaxed.budget_bytes + ByteTolerance(problem.relaxed));
  for (const ChosenUnit& unit : solution.units) {
    EXPECT_TRUE(IsPolicy(problem.policies[problem.policies_of[unit.node]],
                         unit.net_bytes));
    EXPECT_GT(unit.net_bytes, 0);
  }
}

TEST(JointMilp, FindsTheBestOfAllPolicies) {
  std::mt19937 random(11);
  int infeasible = 0;
  int with_units = 0;
  for (int round = 0; round < 3000; ++round) {
    SCOPED_TRACE(round);
    const JointProblem problem = RandomJointProblem(
        random,
        {.forest = {.most_nodes = 7, .prefix_structure = round % 3 != 0}});
    const ModuleSolution solution = SolveJointByCbc(problem);
    infeasible += solution.status == SearchStatus::kInfeasible;
    with_units += !solution.units.empty();
    ExpectBestPolicy(problem, solution);
    if (HasFailure()) break;
  }
  EXPECT_GT(infeasible, 100);
  EXPECT_GT(with_units, 500);
}

// Equal blocks that no record tells apart are one class.
TEST(JointMilp, FindsTheBestWhereBlocksAreEqual) {
  std::mt19937 random(12);
  int merged = 0;
  for (int round = 0; round < Repetitions(800); ++round) {
    SCOPED_TRACE(round);
    const JointProblem problem = RandomJointProblem(
        random, {.forest = {.most_nodes = 9, .held_bytes = 0.1},
                 .most_kinds = 2,
                 .equal_blocks = 1});
    const JointMilp form = ToMilp(problem);
    merged += std::ranges::any_of(
        form.classes, [](const auto& c) { return c.nodes.size() > 1; });
    ExpectBestPolicy(problem, SolveJointByCbc(problem));
    if (HasFailure()) break;
  }
  EXPECT_GT(merged, Enough(200));
}

// A single byte decides at these budgets, for sizes beyond CBC's precision.
TEST(JointMilp, CountsEveryByte) {
  std::mt19937 random(13);
  for (int round = 0; round < Repetitions(800); ++round) {
    SCOPED_TRACE(round);
    JointProblem problem =
        RandomJointProblem(random, {.forest = {.most_nodes = 6},
                                    .most_kinds = 2,
                                    .bytes_scale = int64_t{1} << 38});
    for (ModuleProblem::Node& node : problem.relaxed.nodes) {
      node.base_bytes = std::round(node.base_bytes);
      node.held_bytes = std::round(node.held_bytes);
    }
    problem.relaxed.fixed_bytes = 0;
    problem.relaxed.budget_bytes = std::round(problem.relaxed.budget_bytes);
    const ModuleSolution wide = SolveJointByCbc(problem);
    ExpectBestPolicy(problem, wide);
    // The largest record of a solution is a budget that fits exactly.
    if (wide.units.empty()) continue;
    problem.relaxed.budget_bytes = SolutionPeak(problem.relaxed, wide.units);
    ExpectBestPolicy(problem, SolveJointByCbc(problem));
    problem.relaxed.budget_bytes -= 1;
    ExpectBestPolicy(problem, SolveJointByCbc(problem));
    if (HasFailure()) break;
  }
}

// No double holds these sums exactly if they are scaled by anything but a power
// of two. CBC once took them for a little short of the record, and then for far
// off.
TEST(JointMilp, FindsTheBestOfAProfileWhoseRecordIsMetExactly) {
  const graph::Profile profile = graph::ReadProfile(
      ACPLAN_TEST_DATA_DIR "/profiles/sums_that_meet_a_record.json.gz");
  const graph::ModuleTree tree(profile);
  const JointProblem problem =
      BuildJointProblem(profile, tree, {.budget_bytes = 56832}).problem;
  const ModuleSolution by_cbc = SolveJointByCbc(problem);
  const ModuleSolution by_labels = SolveJointByLabels(problem);
  EXPECT_EQ(by_cbc.status, SearchStatus::kOptimal);
  EXPECT_NEAR(by_cbc.ms, by_labels.ms, 1e-9);
}

TEST(JointMilp, StopsAtLimitsWithBoundsAroundTheOptimum) {
  std::mt19937 random(15);
  const std::atomic<bool> interrupted = true;
  int searched = 0;
  int stopped = 0;
  for (int round = 0; round < Repetitions(60); ++round) {
    SCOPED_TRACE(round);
    const JointProblem problem =
        RandomJointProblem(random, {.forest = {.most_nodes = 60},
                                    .most_kinds = 8,
                                    .most_equal = 3,
                                    .equal_blocks = 0});
    solver::SearchLimits plenty;
    plenty.gap = 1e-4;
    const ModuleSolution best = SolveJointByCbc(problem, plenty);
    if (best.units.empty()) continue;
    ++searched;
    std::vector<solver::SearchLimits> all(4);
    all[0].time_limit_s = 0;
    all[1].interrupted = &interrupted;
    all[2].node_limit = 1;
    all[3].gap = 0.5;
    for (const solver::SearchLimits& limits : all) {
      const ModuleSolution solution = SolveJointByCbc(problem, limits);
      EXPECT_NE(solution.status, SearchStatus::kInfeasible);
      EXPECT_LE(solution.bound_ms, best.ms * (1 + 1e-6));
      if (solution.status != SearchStatus::kOptimal) {
        ++stopped;
        EXPECT_NE(solution.stopped_by, solver::StoppedBy::kNothing);
      }
      if (solution.status == SearchStatus::kNoSolution) continue;
      EXPECT_GE(solution.ms, best.bound_ms * (1 - 1e-6));
      EXPECT_LE(SolutionPeak(problem.relaxed, solution.units),
                problem.relaxed.budget_bytes + ByteTolerance(problem.relaxed));
    }
    EXPECT_EQ(SolveJointByCbc(problem, plenty).ms, best.ms);
    if (HasFailure()) break;
  }
  EXPECT_GT(searched, Enough(10));
  EXPECT_GT(stopped, Enough(20));
}

TEST(JointMilp, LeavesNothingToSearchWhereTheBudgetIsMet) {
  std::mt19937 random(14);
  JointProblem problem = RandomJointProblem(random);
  problem.relaxed.fixed_bytes = 0;
  problem.relaxed.budget_bytes = 1e9;
  const std::atomic<bool> interrupted = true;
  solver::SearchLimits none;
  none.time_limit_s = 0;
  none.interrupted = &interrupted;
  const ModuleSolution solution = SolveJointByCbc(problem, none);
  EXPECT_EQ(solution.status, SearchStatus::kOptimal);
  EXPECT_EQ(solution.ms, 0);
  EXPECT_TRUE(solution.units.empty());
  problem.relaxed.fixed_bytes = 2e9;
  EXPECT_EQ(SolveJointByCbc(problem).status, SearchStatus::kInfeasible);
}

}  // namespace
}  // namespace acplan::problems
