#pragma once

#include <string>
#include <string_view>

#include "costmodel/calculon/results/rate_map.h"

namespace acplan::cli {

// The sample rate as a surface over the indices of tensor and pipeline
// parallelism in the colours of `rainbow`, seen from 20 degrees above and an
// azimuth of 205 degrees. A face with a corner without a rate is left out. "" is
// no title.
std::string SurfaceSvg(const costmodel::RateMap& map, std::string_view title);
// The same picture, which a script turns as it is dragged, or with the arrow
// keys: it moves, hides and reorders what is drawn.
std::string SurfaceHtml(const costmodel::RateMap& map, std::string_view title);

}  // namespace acplan::cli
