#pragma once

#include <string>
#include <string_view>

#include "costmodel/calculon/results/rate_map.h"

namespace acplan::cli {

// The rate from which on a cell is bright enough for dark text.
double DarkTextThreshold(const costmodel::RateMap& map);

// Tensor parallelism upwards, pipeline parallelism to the right, a cell for each
// pair in the colours of `hot` with its rate to one decimal; grey where there is
// none. "" is no title.
std::string HeatmapSvg(const costmodel::RateMap& map, std::string_view title);
// The same picture and the table of it.
std::string HeatmapHtml(const costmodel::RateMap& map, std::string_view title);

}  // namespace acplan::cli
