// Uses the installed libraries as another project would.
#include <cstdio>
#include <string>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/ask.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  const auto profile = acplan::graph::ReadProfile(argv[1]);
  const acplan::graph::ModuleTree tree(profile);
  acplan::problems::Question question{
      .profile = &profile,
      .tree = &tree,
      .options = {.granularity = acplan::problems::Granularity::kModule,
                  .tradeoff = acplan::problems::Tradeoff::kProfile}};
  question.options.memory.model = acplan::problems::DefaultMemoryModel(profile);
  const auto infeasible = Ask(question, {.bytes = 1}).plan;
  if (!infeasible.minimum_budget_bytes) return 1;

  const auto between =
      (*infeasible.minimum_budget_bytes + infeasible.baseline.peak_bytes) / 2;
  question.options.limits.time_limit_s = 10;
  for (const auto engine :
       {acplan::problems::Engine::kLabels, acplan::problems::Engine::kCbc}) {
    question.options.engine = engine;
    const auto plan = Ask(question, {.bytes = between}).plan;
    std::printf("%s: %s, %zu units, %.3f ms\n", plan.solver.name.c_str(),
                std::string(ToString(plan.status)).c_str(), plan.modules.size(),
                plan.recompute_ms);
    if (!plan.HasPlan() || plan.modules.empty()) return 1;
  }
}
