#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "cli/input/planning_flags.h"
#include "cli/input/profile_input.h"
#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/planner.h"
#include "problems/segment_plans.h"
#include "solver/search.h"

namespace acplan::cli {

// What the flags of a planning command ask: a problem, or one for each family of
// segments. Refers to the input and the tree of its profile, which must outlive it.
class PlanningQuestion {
 public:
  // Throws InputError as BuildPlanningProblem and PlanningFlags::Segments do.
  PlanningQuestion(const PlanningFlags& flags, const ProfileInput& input,
                   const graph::ModuleTree& tree,
                   const problems::PlanOptions& options);

  // The problem, or that of the first family.
  const problems::PlanningProblem& problem() const;

  problems::LeastWithSegments Least(const solver::SearchLimits& limits) const;

  // The units with the least budget, and the trace that has them: of an answer of
  // Least that has a plan, under the memory model of traces.
  struct LeastUnits {
    const graph::Trace* trace = nullptr;
    std::vector<graph::CheckpointedModule> modules = {};
  };
  LeastUnits UnitsOf(const problems::LeastWithSegments& least) const;

  // The best plan, and the problem that has its units.
  struct Found {
    problems::Plan plan;
    const problems::PlanningProblem* problem = nullptr;
  };
  // `known`: as Least says of each family; none: nothing is known.
  Found PlanWithin(int64_t budget_bytes, const solver::SearchLimits& limits,
                   const std::vector<problems::LeastAnswer>& known) const;

  // As problems::PlanFrontier.
  std::vector<problems::Plan> PlansWithin(
      const std::vector<int64_t>& budgets, const solver::SearchLimits& limits,
      const std::function<void(size_t)>& done,
      const std::vector<problems::LeastAnswer>& known) const;

 private:
  std::optional<problems::PlanningProblem> without_;
  problems::ProblemsWithSegments with_segments_;
};

}  // namespace acplan::cli
