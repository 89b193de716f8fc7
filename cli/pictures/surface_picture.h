#pragma once

#include <string>
#include <string_view>

#include "costmodel/calculon/results/rate_map.h"

namespace acplan::cli {

// Draws the sample rate as a surface over the indices of tensor and pipeline
// parallelism in the colours of `rainbow`, seen from 20 degrees above and an
// azimuth of 205 degrees. Leaves out faces with a corner that has no rate.
// A legend has the colours. "" stands for kRateTitle.
std::string SurfaceSvg(const costmodel::RateMap& map, std::string_view title);
// Returns the same picture, a table of the rates, and a script that turns it as it is dragged, or
// with the arrow keys: the script moves, hides and reorders the elements.
std::string SurfaceHtml(const costmodel::RateMap& map, std::string_view title);

}  // namespace acplan::cli
