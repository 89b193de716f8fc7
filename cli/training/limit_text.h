#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "cli/training/train_input.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::cli {

// Returns the line on what a GPU has, what of it is the context's and, for the job's
// strategy, the communicators', and what is left for PyTorch; "" with --budget.
std::string LimitOfJobText(const costmodel::TrainingJob& job,
                           const TrainQuestion& question);

// Returns the line on what all strategies on a GPU have together.
std::string LimitText(const costmodel::Accelerator& gpu,
                      const TrainQuestion& question);

// Returns the sum as the field "device"; {} with --budget.
nlohmann::ordered_json LimitOfJobJson(const costmodel::TrainingJob& job,
                                      const TrainQuestion& question);

}  // namespace acplan::cli
