#include "problems/joint_solution.h"

#include <cmath>

namespace acplan::problems {

ModuleSolution SolveJointWithScaledTimes(const JointProblem& problem,
                                         const solver::SearchLimits& limits,
                                         const SolveJointProblem& solve) {
  return SolveWithTimeFactor(
      problem.relaxed, limits,
      [&](double factor, ModuleProblem relaxed,
          const solver::SearchLimits& scaled_limits) {
        JointProblem scaled{.relaxed = std::move(relaxed),
                            .policies = problem.policies,
                            .policies_of = problem.policies_of};
        for (JointProblem::Policies& policies : scaled.policies) {
          policies.base_ms *= factor;
          for (GroupKind& kind : policies.kinds) kind.ms *= factor;
        }
        for (size_t i = 0; i < scaled.policies_of.size(); ++i) {
          if (scaled.relaxed.nodes[i].curve.empty()) scaled.policies_of[i] = -1;
        }
        return solve(scaled, scaled_limits);
      });
}

double JointCost(const JointProblem& problem,
                 const std::vector<ChosenUnit>& units) {
  double ms = 0;
  for (const ChosenUnit& unit : units) {
    ms += problem.policies[problem.policies_of[unit.node]].LeastMs(
        std::llround(unit.net_bytes));
  }
  return ms;
}

}  // namespace acplan::problems
