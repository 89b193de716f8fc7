#include "problems/model/joint_solution.h"

#include <cmath>
#include <utility>

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
          for (PolicyPoint& point : policies.points) point.ms *= factor;
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
    ms += problem.policies[problem.policies_of[unit.node]].MsOf(unit.counts);
  }
  return ms;
}

ChosenUnit WithCheapPolicy(const JointProblem& problem, ChosenUnit unit) {
  constexpr int64_t kLabels = 1 << 17;
  const JointProblem::Policies& policies =
      problem.policies[problem.policies_of[unit.node]];
  std::vector<int> cheap = policies.LeastCounts(std::llround(unit.net_bytes),
                                                {.node_limit = kLabels});
  if (policies.MsOf(cheap) <= policies.MsOf(unit.counts)) {
    unit.counts = std::move(cheap);
    unit.net_bytes = static_cast<double>(policies.BytesOf(unit.counts));
  }
  return unit;
}

}  // namespace acplan::problems
