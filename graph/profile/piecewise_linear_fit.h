#pragma once

#include <utility>
#include <vector>

namespace acplan::graph {

// A continuous piecewise-linear function on [breakpoints.front(),
// breakpoints.back()]: slope_k x + intercept_k between breakpoints k and k + 1.
struct PiecewiseLinear {
  std::vector<double> slopes, intercepts;  // one for each segment, at least one
  std::vector<double> breakpoints;         // segments + 1, ascending
  // Returns the value at x. Outside of the breakpoints the first and the last segment
  // continue.
  double At(double x) const;
};
double SquaredError(const PiecewiseLinear& f,
                    const std::vector<std::pair<double, double>>& points);

// Fits the continuous piecewise-linear function of at most `segments` segments that has the
// least squared error over the points; breakpoints are free. Requires at least one point, x
// ascending and distinct, and segments >= 1. Deterministic. The result is a global optimum
// for up to 3 segments, and above that a local one that is never worse than the one with a
// segment less. It has fewer segments if more do not lower the error, and never more than
// fit between the points; for a single point the slope is 0.
//
// Where two segments join, either an optimum has a point, or the segments are independent
// of each other there (Hudson, 1966: Fitting segmented curves whose join points have to be
// estimated). So each join is tried at every point and between every two neighbours; for 3
// segments that is every pair of places, except the pairs that separate lines rule out.
PiecewiseLinear FitPiecewiseLinear(
    const std::vector<std::pair<double, double>>& points, int segments);

}  // namespace acplan::graph
