#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "graph/profile/profile.h"
#include "problems/model/memory_model.h"

namespace acplan::cli {

// The step of a profile, which has no operators: the bytes by kind at the peak of
// each module's forward and backward, and of the optimizer step, as step_data.h
// has them of operators. Without samples where modules have no snapshots. A rank
// has a W-th of parameters, gradients and optimizer state.
nlohmann::ordered_json ProfileRunJson(const std::string& name,
                                      const graph::Profile& profile,
                                      const problems::MemoryOptions& memory);

}  // namespace acplan::cli
