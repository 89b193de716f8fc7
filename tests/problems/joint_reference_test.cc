#include <gtest/gtest.h>

#include <algorithm>
#include <string>

#include "graph/profile/module_tree.h"
#include "problems/engines/labels/joint_labels.h"
#include "problems/model/joint_problem.h"
#include "problems/model/module_solution.h"
#include "tests/support/reference_data.h"

namespace acplan::problems {
namespace {

using graph::ModuleTree;
using solver::SearchStatus;
using test_support::BundledProfile;
using test_support::KnownJointOptima;
using test_support::KnownOptimum;

class KnownJoint : public ::testing::TestWithParam<KnownOptimum> {};
INSTANTIATE_TEST_SUITE_P(All, KnownJoint,
                         ::testing::ValuesIn(KnownJointOptima()),
                         [](const auto& test) {
                           std::string name =
                               ::testing::PrintToString(test.param);
                           std::ranges::replace(name, ' ', '_');
                           return name;
                         });

TEST(KnownJointFile, HasAllModels) {
  EXPECT_EQ(KnownJointOptima().size(), 21u);
}

TEST_P(KnownJoint, OptimaAreFoundAndProven) {
  const graph::Profile& profile = BundledProfile(GetParam().profile);
  const ModuleTree tree(profile);
  JointProblemOptions options;
  options.memory.model = MemoryModel::kTorch;
  options.budget_bytes = static_cast<double>(GetParam().budget_bytes);
  const BuiltJointProblem built_problem =
      BuildJointProblem(profile, tree, options);
  const ModuleSolution solution = SolveJointByLabels(built_problem.problem);
  const double optimum = GetParam().joint_recompute_ms;
  EXPECT_EQ(solution.status, SearchStatus::kOptimal);
  EXPECT_NEAR(solution.ms, optimum, 1e-6 * optimum);
  EXPECT_NEAR(solution.bound_ms, optimum, 1e-6 * optimum);
  EXPECT_LE(SolutionPeak(built_problem.problem.relaxed, solution.units),
            options.budget_bytes + 0.01);
}

}  // namespace
}  // namespace acplan::problems
