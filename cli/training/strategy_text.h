#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "costmodel/training/strategy/training_job.h"

namespace acplan::cli {

// Returns "TP 8, PP 2 x 4 chunks, DP 4, ZeRO 1"; with the schedule if it is
// neither 1F1B nor interleaved, and the groups of sharded parameters if there
// are several.
std::string StrategyText(const costmodel::TrainingStrategy& strategy);
// Returns the value of the setting: "none", "full:3",
// "selective:core_attn+moe_act".
std::string RecomputationText(const costmodel::TrainingStrategy& strategy);

// Returns the settings of docs/file_formats.md that describe a job:
// JobOfSettings makes the same job from them, given the model and the systems.
nlohmann::ordered_json StrategyJson(const costmodel::TrainingJob& job);

}  // namespace acplan::cli
