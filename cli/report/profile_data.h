#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

#include "graph/profile/profile.h"
#include "problems/model/memory_model.h"

namespace acplan::cli {

// Returns the step of a profile, which has no operators: the bytes by kind at
// the peak of each module's forward and backward, and of the optimizer step, in
// the form that step_data.h has for operators. Has no samples if modules have
// no snapshots. A rank has a W-th of parameters, gradients and optimizer state.
nlohmann::ordered_json ProfileRunJson(const std::string& name,
                                      const graph::Profile& profile,
                                      const problems::MemoryOptions& memory);

}  // namespace acplan::cli
