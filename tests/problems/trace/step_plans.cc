#include "tests/problems/trace/step_plans.h"

#include <algorithm>
#include <variant>

namespace acplan::problems {

std::optional<std::vector<StepPlan>> StepPlansOf(const Question& question,
                                                 int64_t most,
                                                 const StepMeasure& step_ms) {
  std::vector<StepPlan> plans;
  const Families families = BuildFamilies(question);
  for (const FamilyProblem& family : families) {
    const auto& problem = std::get<TraceProblem>(family.problem.formulation);
    const auto of_family = EnumeratePlans(problem, {}, most);
    if (!of_family) return std::nullopt;
    for (const TracePlans::Plan& plan : of_family->plans) {
      const graph::Simulation step = problem.simulator.Simulate(plan.modules);
      plans.push_back({plan.peak_bytes,
                       step_ms(*family.problem.trace, plan, step),
                       step.recompute_ms});
    }
  }
  return plans;
}

int64_t SmallBudget(std::vector<StepPlan> plans, unsigned seed) {
  std::ranges::sort(plans, {}, &StepPlan::peak_bytes);
  return plans[plans.size() * (1 + seed % 3) / 20].peak_bytes;
}

LeastSteps LeastWithin(int64_t budget_bytes,
                       const std::vector<StepPlan>& plans) {
  LeastSteps all{.budget_bytes = budget_bytes};
  double least_ms = INFINITY;
  for (const StepPlan& plan : plans) {
    if (plan.peak_bytes > budget_bytes) continue;
    all.least_step_ms = std::min(all.least_step_ms, plan.step_ms);
    if (plan.recompute_ms < least_ms) {
      least_ms = plan.recompute_ms;
      all.least_recomputing_ms = plan.step_ms;
    }
  }
  return all;
}

}  // namespace acplan::problems
