#pragma once

#include <string>

#include "costmodel/training/strategy/training_job.h"

namespace acplan::cli {

// Returns a line for each tower of the model: its parameters, whether it is trained, and the
// images that it reads.
std::string TowersText(const costmodel::TrainingJob& job);

}  // namespace acplan::cli
