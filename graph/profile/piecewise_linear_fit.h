#pragma once

#include <utility>
#include <vector>

namespace acplan::graph {

// A continuous piecewise-linear function on [breakpoints.front(),
// breakpoints.back()]: slope_k x + intercept_k between breakpoints k and k + 1.
struct PiecewiseLinear {
  std::vector<double> slopes, intercepts;  // one a segment, at least one
  std::vector<double> breakpoints;         // segments + 1, ascending
  // Outside of the breakpoints the first and the last segment go on.
  double At(double x) const;
};
double SquaredError(const PiecewiseLinear& f,
                    const std::vector<std::pair<double, double>>& points);

// The continuous piecewise-linear function of at most `segments` segments with
// the least squared error over the points; breakpoints are free. At least one
// point, x ascending and distinct, segments >= 1. Deterministic. A global
// optimum for up to 3 segments; above that a local one, never worse than with a
// segment less. Fewer segments where more do not lower the error, and never
// more than lie between points; a single point has slope 0.
//
// Where two segments join, an optimum has a point, or the segments are free of
// each other there (Hudson, 1966: Fitting segmented curves whose join points
// have to be estimated). So each join is tried at every point and between every
// two neighbours; for 3 segments that is every pair of places, less those that
// separate lines rule out.
PiecewiseLinear FitPiecewiseLinear(
    const std::vector<std::pair<double, double>>& points, int segments);

}  // namespace acplan::graph
