#pragma once

#include <optional>
#include <vector>

#include "costmodel/training/plans/training_plan.h"

namespace acplan::costmodel {

// The problem of planning one strategy of a search, with the values that strategies share
// computed before. Refers to all of them.
struct PlanProblem {
  const TrainingJob& job;
  const UnitTimes& units;
  const PlannedLayers& layers;
  const std::vector<StageKind>& kinds;
  double budget = 0;
};

// Returns whether the plan that keeps least fits.
bool DoesLeastFit(const PlanProblem& problem);

// Returns seconds of an iteration that no plan is below; infinity if no plan fits. The
// quick bound takes two stages of each kind, the first and the last, for all of it.
double QuickPlanBound(const PlanProblem& problem);
double PlanBound(const PlanProblem& problem);

struct PlannedStrategy {
  double seconds = 0;
  double bytes = 0;  // of the stage with the highest peak
  // Less than `seconds` if that is not proven to be the least.
  double bound = 0;
  std::vector<PolicyChoice> choices = {};  // indexed by stage
};

// The known choices, indexed by stage.
using StageChoices = std::vector<std::optional<PolicyChoice>>;

struct PlanOutcome {
  std::optional<PlannedStrategy> plan = {};
  double bound = 0;  // no plan takes less; infinity if none fits
  StageChoices choices = {};
};

// Returns the best plan, with this effort for each stage. There is no plan if none fits, if
// a bound shows that all take more than `cutoff` seconds, or if a stage has no choice when
// its search ends. Known choices that are optimal are used unchanged.
PlanOutcome PlanOfStrategy(const PlanProblem& problem,
                           const ChoiceEffort& effort, double cutoff,
                           StageChoices known_choices);

}  // namespace acplan::costmodel
