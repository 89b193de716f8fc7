#pragma once

#include <random>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/aggregate.h"
#include "graph/trace/trace.h"
#include "problems/planner.h"
#include "tests/support/random_step.h"

namespace acplan::problems {

// A random step, and the problem of its plans that skip nothing.
struct LanguageStep {
  explicit LanguageStep(unsigned seed, const test_support::StepOptions& options)
      : trace([&] {
          std::mt19937 random(seed);
          return test_support::RandomStep(random, options);
        }()),
        profile(graph::Aggregate(trace)),
        tree(profile),
        problem(BuildPlanningProblem(profile, tree,
                                     {.memory = {.model = MemoryModel::kTrace}},
                                     &trace)) {}
  LanguageStep(const LanguageStep&) = delete;
  LanguageStep& operator=(const LanguageStep&) = delete;

  graph::Trace trace;
  graph::Profile profile;
  graph::ModuleTree tree;
  PlanningProblem problem;
};

}  // namespace acplan::problems
