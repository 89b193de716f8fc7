#pragma once

#include <optional>
#include <vector>

#include "costmodel/training/plans/training_plan.h"

namespace acplan::costmodel {

// Planning one strategy of a search: what strategies share was computed before.
// Refers to all of it.
struct PlanProblem {
  const TrainingJob& job;
  const UnitTimes& units;
  const PlannedLayers& layers;
  const std::vector<StageKind>& kinds;
  double budget = 0;
};

// Whether the plan that keeps least fits.
bool DoesLeastFit(const PlanProblem& problem);

// Seconds of an iteration that no plan goes below; infinite where none fits. The
// quick one takes two stages of each kind, the first and the last, for all of it.
double QuickPlanBound(const PlanProblem& problem);
double PlanBound(const PlanProblem& problem);

struct PlannedStrategy {
  double seconds = 0;
  double bytes = 0;  // of the stage that holds most
  double bound = 0;  // less than `seconds` where that is not proven the least
  std::vector<PolicyChoice> choices = {};  // of each stage
};

// What is known of the choice of each stage.
using StageChoices = std::vector<std::optional<PolicyChoice>>;

struct PlanOutcome {
  std::optional<PlannedStrategy> plan = {};
  double bound = 0;  // no plan takes less; infinite where none fits
  StageChoices choices = {};
};

// The best plan, with this effort for each stage; none where none fits, when a bound
// shows that all take more than `cutoff` seconds, or where a stage has no choice when
// its search ends. Choices of stages that are known to be optimal are taken as they
// are.
PlanOutcome PlanOfStrategy(const PlanProblem& problem,
                           const ChoiceEffort& effort, double cutoff,
                           StageChoices known);

}  // namespace acplan::costmodel
