#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/engines/minimum_budget.h"
#include "problems/model/joint_problem.h"
#include "problems/model/memory_model.h"
#include "problems/model/module_problem.h"
#include "problems/plan/plan.h"
#include "problems/plan_options.h"
#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/trace_search.h"
#include "solver/search.h"

namespace acplan::problems {

// Plans on one problem: from a profile and options to a checked answer for any budget.
// ask.h has the questions of users.

// Refers to profile and tree, which must outlive it. options.budget_bytes counts for
// nothing.
struct PlanningProblem {
  const graph::Profile* profile = nullptr;
  const graph::ModuleTree* tree = nullptr;
  PlanOptions options;
  const graph::Trace* trace = nullptr;  // under kTrace
  std::variant<BuiltModuleProblem, BuiltJointProblem, TraceProblem> formulation;
  // Set for a trace whose operators may be skipped: the same where none may.
  std::optional<TraceProblem> without_skips = {};
  PlanBaseline baseline;
  // A rank uses as much at its peak without checkpointing. Where that differs from
  // the baseline, parameters and the like are sharded.
  int64_t unplanned_peak_bytes = 0;

  const std::vector<std::string>& warnings() const;
};
// Returns the options of the problem of a trace.
JointProblemOptions TraceOptionsOf(const PlanOptions& options);

// Builds the problem of a question. `trace` (which must outlive it too) is what the
// profile is derived from; needed under kTrace.
PlanningProblem BuildPlanningProblem(const graph::Profile& profile,
                                     const graph::ModuleTree& tree,
                                     const PlanOptions& options,
                                     const graph::Trace* trace = nullptr);

// The units of a plan, as the engines know them.
struct KnownUnits {
  std::vector<ChosenUnit> units = {};
  std::vector<graph::CheckpointedModule> modules = {};  // under kTrace
  // No worse than the best plan that skips nothing.
  bool beats_plans_without_skips = false;
  SearchSeries series = {};  // of the searches for other budgets, under kTrace
};

// The least budget, reserve included, that any plan meets: above the reserve,
// though a model may need nothing. Under kTrace with a plan that meets it, and no more
// than what the known units, or else plans that skip nothing, were found to need.
struct LeastAnswer {
  MinimumBudget budget;
  bool has_plan = false;
  KnownUnits units = {};
};
LeastAnswer LeastPlan(const PlanningProblem& problem,
                      const solver::SearchLimits& limits,
                      const KnownUnits& known_units = {});

struct PlanAnswer {
  Plan plan;
  KnownUnits units;                 // of the plan, where there is one
  std::vector<NearPlan> near = {};  // as the series asks for
};
// Plans within a budget. `known_units`: those of an answer for another budget; if
// they meet this one too, the search starts from them and answers with nothing worse.
// If operators may be skipped, the search starts as well from the best plan that skips
// nothing, provided that a small share of the time suffices to find that plan. Plans of
// a trace that cost as much as the cut-off do not count: an answer without a plan then has
// a bound on all others.
PlanAnswer PlanFor(const PlanningProblem& problem, int64_t budget_bytes,
                   const solver::SearchLimits& limits,
                   const KnownUnits& known_units = {});

// Returns the answer of a search that ended without one: no plan, stopped by a limit.
Plan PlanWithoutAnswer(const PlanningProblem& problem, int64_t budget_bytes,
                       solver::StoppedBy stopped_by);

// Returns another answer to the question that `plan` answers, on a trace: these units,
// with what they do over the link of plan.offload, if it has one. It is feasible,
// without a bound, or optimal where it costs nothing. Throws std::logic_error where it
// fails the check.
Plan PlanOfUnits(const PlanningProblem& problem, Plan plan,
                 const std::vector<graph::CheckpointedModule>& units);

}  // namespace acplan::problems
