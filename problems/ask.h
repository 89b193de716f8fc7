#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <variant>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "graph/trace/trace.h"
#include "problems/budget.h"
#include "problems/offload/movables.h"
#include "problems/plan/plan.h"
#include "problems/plan_options.h"
#include "problems/planner.h"
#include "problems/segment_plans.h"
#include "solver/search.h"

namespace acplan::problems {

// One question, one answer: the commands, the Python package and users of the library
// all plan by these functions.

// Run-times that may be wrong by a factor (docs/formulation.md#times-that-are-wrong).
struct TimesOffOptions {
  graph::ByKind<double> factors = EqualFactors(1.5);  // at least 1
  bool is_robust =
      false;  // the plan that loses least, not the one that recomputes least
};

// Refers to profile, tree and trace, which must outlive the question and its answers.
// options.budget_bytes counts for nothing; options.limits hold for the whole answer.
struct Question {
  const graph::Profile* profile = nullptr;
  const graph::ModuleTree* tree = nullptr;  // of the profile
  PlanOptions options = {};
  const graph::Trace* trace =
      nullptr;  // what the profile is derived from; under kTrace
  SegmentChoice segments = {};  // under kTrace
  // If given, better plans for other run-times are searched for. Under kTrace; not with a
  // link.
  std::optional<TimesOffOptions> times_off = {};
};

// Returns the planning problems of a question, one for each family of segments.
// Throws InputError for what BuildModuleProblem, BuildJointProblem or Aggregate
// refuses, and for options out of range or that do not go together (kOperator takes
// kPareto only, patterns take kOperator, Engine::kLabels takes some trees only).
Families BuildFamilies(const Question& question);

struct Answer {
  Families families;  // of the question
  Plan plan;
  size_t family = 0;  // the family that has the plan's units
  // The plan has a shorter step than the one that recomputes least.
  bool is_for_step = false;
  // The least budget; for Budget::kMinimum only. If it is neither proven nor met by a known
  // plan, the answer has no plan: the time limit was hit.
  std::optional<LeastOfFamilies> least = {};

  const PlanningProblem& problem() const { return families[family].problem; }
};

// Plans, and checks the plan with code that shares nothing with the engines
// (check/plan_check.h) before it returns. If no plan fits, the plan says so and has the
// smallest budget that one would fit. A plan on a trace that may skip has the bound of
// any schedule (any_schedule.h), and a plan on a trace what it can lose if run-times are
// wrong (times_off_plans.h), for which the limits hold once more; with `link` it offloads in its place (offload_plans.h).
// Throws InputError as BuildFamilies, and for a reserve that leaves no budget;
// std::logic_error if the plan fails its check: a defect of acplan.
Answer Ask(const Question& question, const Budget& budget,
           const std::optional<LinkLimits>& link = {});

// The budgets of a frontier: these, or so many that are even from the least that any plan
// needs to what a rank needs without a plan.
using FrontierBudgets = std::variant<int, std::vector<Budget>>;

struct FrontierAnswer {
  Families families;
  LeastOfFamilies least;
  // In ascending order of budgets. Empty if Budget::kMinimum is asked for and, as in
  // Answer, has no answer.
  std::vector<Plan> plans = {};
};

// Plans at each budget. The limits hold for all budgets together. `on_plan(k, n)` (may be
// empty) is called when k plans of n are made, from k = 0 on. With `link` the plans, and the
// least budget, are those of Ask.
FrontierAnswer AskFrontier(
    const Question& question, const FrontierBudgets& budgets,
    const std::function<void(size_t, size_t)>& on_plan = {},
    const std::optional<LinkLimits>& link = {});

// Returns the limits of a search for the least budget, so that time remains for a plan:
// half of the time, and no gap.
solver::SearchLimits LimitsOfMinimum(solver::SearchLimits limits);

}  // namespace acplan::problems
