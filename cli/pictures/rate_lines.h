#pragma once

#include <string>

#include "costmodel/calculon/results/rate_map.h"

namespace acplan::cli {

// "TP,PP is RATE" or "TP,PP has none", a line a cell.
std::string RateLines(const costmodel::RateMap& map);

}  // namespace acplan::cli
