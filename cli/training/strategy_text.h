#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "costmodel/training/strategy/training_job.h"

namespace acplan::cli {

// "TP 8, PP 2 x 4 chunks, DP 4, ZeRO 1"; with the schedule where it is neither 1F1B
// nor interleaved, and the groups of sharded parameters where there are several.
std::string StrategyText(const costmodel::TrainingStrategy& strategy);
// As the setting says it: "none", "full:3", "selective:core_attn+moe_act".
std::string RecomputationText(const costmodel::TrainingStrategy& strategy);

// The settings of docs/file_formats.md that say a job: JobOfSettings makes the same
// job of them, given the model and the systems.
nlohmann::ordered_json StrategyJson(const costmodel::TrainingJob& job);

}  // namespace acplan::cli
