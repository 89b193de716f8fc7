#pragma once

#include <string>

#include "costmodel/calculon/results/rate_map.h"

namespace acplan::cli {

// Returns "TP,PP is RATE" or "TP,PP has none", a line for each cell.
std::string RateLines(const costmodel::RateMap& map);

}  // namespace acplan::cli
