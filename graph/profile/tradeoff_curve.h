#pragma once

#include <map>
#include <utility>
#include <vector>

#include "graph/profile/profile.h"

namespace acplan::graph {

// The recomputation of a module as a function of the bytes that it discards, as PyTorch's
// SACEstimator estimates it (torch.distributed._tools.sac_estimator): a greedy order of the
// operators, the curve of its prefixes, and a piecewise-linear fit of the curve. A fit is
// no bound: policies may be better or worse. pareto_list.h has the exact trade-off.

// A candidate of the greedy order: operators that are discarded together.
struct GreedyItem {
  int head = 0;          // operator index that names the item
  std::vector<int> ops;  // ascending, head included
  int64_t memory = 0;    // bytes
  double runtime = 0;    // ms
  // memory / runtime; the largest double if that is more, or if runtime is 0.
  double msps = 0;
};

// PyTorch's SACGreedyOrderMeta, with one difference: if random operators must be stored, an
// in-place group with any random operator is stored; PyTorch stores it if their number is
// odd.
struct GreedyOrder {
  std::vector<int> stored_ops;      // ascending, heads of the stored groups
  std::vector<int> recomputed_ops;  // ascending
  std::map<int, std::vector<int>> inplace_op_groups;  // head -> members
  std::map<int, std::vector<int>> random_ops_group;   // head -> members
  // Most bytes for each millisecond first; among equals (to 1e-9 of the larger) the smaller
  // head first.
  std::vector<GreedyItem> items;
};
GreedyOrder ComputeGreedyOrder(const SacStatistics& sac);

// The shift that PyTorch adds to the discarded fractions of the curve.
inline constexpr double kCurveShift = .01;

// Returns points (discarded fraction + kCurveShift, recomputed fraction), x ascending. The
// first point has the operators that are recomputed in any case, then there is one point
// for each prefix of `order`, and the last one, as in PyTorch, has all operators, including
// the stored ones. If all memory or all run-time is 0, that fraction is 0 throughout.
// Points with equal discarded fractions are replaced by the last one of them (PyTorch keeps
// the curve in a dict).
std::vector<std::pair<double, double>> GreedyCurve(const SacStatistics& sac,
                                                   const GreedyOrder& order);

// Returns the points that PyTorch fits to be on the safe side: each x of the curve with the
// y of the point after it, so one point fewer.
std::vector<std::pair<double, double>> FittedPoints(
    const std::vector<std::pair<double, double>>& curve);

// Computes PyTorch's SACTradeOffStats from raw statistics: sums, greedy curve and fit of
// FittedPoints. As in PyTorch, the number of segments is at most the number of fitted
// points - 2, and at least 1. Slopes and intercepts are in fractions: the recomputed one of
// sac_runtime against the discarded one of sac_memory. If there is nothing to fit (fewer
// than 2 points or no memory), the fit is one segment from the share that is recomputed in
// any case at 0, to 1 at 1. Requires segments >= 1.
TradeoffFit FitTradeoff(const SacStatistics& sac, int segments = 2);

}  // namespace acplan::graph
