#pragma once

#include <string>
#include <string_view>

#include "costmodel/calculon/results/rate_map.h"

namespace acplan::cli {

// Returns the rate above which Calculon's heatmap.py writes dark text.
double DarkTextThreshold(const costmodel::RateMap& map);

// Draws a map with tensor parallelism upwards and pipeline parallelism to the
// right. Each pair has a cell in the colours of `hot` with its rate, or a grey
// one if there is no rate; a legend has both. "" stands for kRateTitle.
std::string HeatmapSvg(const costmodel::RateMap& map, std::string_view title);
// Returns the same picture together with a table of it.
std::string HeatmapHtml(const costmodel::RateMap& map, std::string_view title);

}  // namespace acplan::cli
