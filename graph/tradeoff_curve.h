#pragma once

#include <map>
#include <utility>
#include <vector>

#include "graph/profile.h"

namespace acplan::graph {

// What a module recomputes for what it discards, as PyTorch's SACEstimator
// estimates it (torch.distributed._tools.sac_estimator): a greedy order of the
// operators, the curve of its prefixes, and a piecewise-linear fit of the curve.
// A fit is no bound: policies may be better or worse. pareto_list.h has the
// exact trade-off.

// A candidate of the greedy order: operators that are discarded together.
struct GreedyItem {
  int head = 0;          // operator index that names the item
  std::vector<int> ops;  // ascending, head included
  int64_t memory = 0;    // bytes
  double runtime = 0;    // ms
  double msps = 0;       // memory / runtime; the largest double for runtime 0
};

// SACGreedyOrderMeta.
struct GreedyOrder {
  std::vector<int> stored_ops;      // ascending
  std::vector<int> recomputed_ops;  // ascending
  std::map<int, std::vector<int>> inplace_op_groups;  // head -> members
  std::map<int, std::vector<int>> random_ops_group;   // head -> members
  // Most bytes a millisecond first; of equals (to 1e-9 of the larger) the
  // smaller head first.
  std::vector<GreedyItem> items;
};
GreedyOrder ComputeGreedyOrder(const SacStatistics& sac);

// (discarded fraction + .01, recomputed fraction): the first point is what is
// recomputed in any case, then one a prefix of `order`, and last, as PyTorch
// does, everything with the stored operators. Where all memory or all run-time
// is 0, that fraction is 0 throughout. Of equal discarded fractions, the last
// stays (PyTorch keeps the curve in a dict).
std::vector<std::pair<double, double>> GreedyCurve(const SacStatistics& sac,
                                                   const GreedyOrder& order);

// A continuous piecewise-linear function on [breakpoints.front(),
// breakpoints.back()]: slope_k x + intercept_k between breakpoints k and k + 1.
struct PiecewiseLinear {
  std::vector<double> slopes, intercepts;  // one a segment
  std::vector<double> breakpoints;         // segments + 1, ascending
  double At(double x) const;
};
double SquaredError(const PiecewiseLinear& f,
                    const std::vector<std::pair<double, double>>& points);

// The continuous piecewise-linear function of at most `segments` segments with
// the least squared error over the points; breakpoints are free. At least one
// point, x ascending and distinct, segments >= 1. Deterministic. A global
// optimum for up to 3 segments; above that a local one, never worse than with a
// segment less. With fewer points than would determine them, fewer segments.
PiecewiseLinear FitPiecewiseLinear(
    const std::vector<std::pair<double, double>>& points, int segments);

// From raw statistics what PyTorch calls SACTradeOffStats: sums, greedy curve
// and fit. As PyTorch does, the last point of the curve is not fitted, and the
// number of segments is at most the number of fitted points - 2, at least 1.
// Slopes and intercepts are in fractions: recomputed of sac_runtime against
// discarded of sac_memory. Where there is nothing to fit (fewer than 2 points
// or no memory), one segment from what is recomputed in any case at 0 to 1 at 1.
TradeoffFit FitTradeoff(const SacStatistics& sac, int segments = 2);

}  // namespace acplan::graph
