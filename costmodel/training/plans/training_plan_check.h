#pragma once

#include <optional>
#include <string>

#include "costmodel/training/plans/training_plan.h"

namespace acplan::costmodel {

// Returns what is wrong with a plan of PlanTraining, in a line; nullopt where it
// holds. The check derives anew, from the operations of a layer and a table of its own
// of what they read: what each policy keeps and runs again, with bytes and seconds;
// the layers of each stage; its memory, from what the model says of the strategy with
// no and with full recomputation; and that it is within `budget` where the plan says
// so. It does not prove that no plan is faster.
std::optional<std::string> FindTrainingPlanError(const TrainingJob& job,
                                                 double budget,
                                                 const TrainingPlan& plan);

}  // namespace acplan::costmodel
