#pragma once

#include <optional>
#include <string>

#include "costmodel/training/plans/training_plan.h"

namespace acplan::costmodel {

// Returns the error of a plan of PlanTraining, in one line; nothing if the plan is valid.
// The check derives anew, from the operations of a layer and a separate table of what they
// read: the tensors that each policy keeps and the operations that it runs again, with
// bytes and seconds; the layers of each stage; its memory, from the model's figures for the
// strategy without and with full recomputation; and that it is within `budget` if the plan
// claims so. It does not prove that no plan is faster.
std::optional<std::string> FindTrainingPlanError(const TrainingJob& job,
                                                 double budget,
                                                 const TrainingPlan& plan);

}  // namespace acplan::costmodel
