#pragma once

#include <string>
#include <string_view>

#include "costmodel/calculon/results/rate_map.h"

namespace acplan::cli {

// Returns "TP,PP is RATE" or "TP,PP has none", a line for each cell.
std::string RateLines(const costmodel::RateMap& map);

// The title of a picture for which the user gave none.
inline constexpr std::string_view kRateTitle =
    "Samples a second by tensor and pipeline parallelism";

// Returns a rate with four digits, or, from 1000 on, without a fraction.
std::string RateText(double rate);

// Returns the map as a table of HTML, with a row for each tensor parallelism.
std::string RateTable(const costmodel::RateMap& map);

}  // namespace acplan::cli
