#pragma once

#include <map>
#include <utility>
#include <vector>

#include "graph/profile/profile.h"

namespace acplan::graph {

// What a module recomputes for what it discards, as PyTorch's SACEstimator
// estimates it (torch.distributed._tools.sac_estimator): a greedy order of the
// operators, the curve of its prefixes, and a piecewise-linear fit of the
// curve. A fit is no bound: policies may be better or worse. pareto_list.h has
// the exact trade-off.

// A candidate of the greedy order: operators that are discarded together.
struct GreedyItem {
  int head = 0;          // operator index that names the item
  std::vector<int> ops;  // ascending, head included
  int64_t memory = 0;    // bytes
  double runtime = 0;    // ms
  // memory / runtime; the largest double where that is more, or runtime is 0.
  double msps = 0;
};

// SACGreedyOrderMeta. Where random operators must be stored, an in-place group
// with any of them is; PyTorch stores it where their number is odd.
struct GreedyOrder {
  std::vector<int> stored_ops;      // ascending, heads of what is stored
  std::vector<int> recomputed_ops;  // ascending
  std::map<int, std::vector<int>> inplace_op_groups;  // head -> members
  std::map<int, std::vector<int>> random_ops_group;   // head -> members
  // Most bytes a millisecond first; of equals (to 1e-9 of the larger) the
  // smaller head first.
  std::vector<GreedyItem> items;
};
GreedyOrder ComputeGreedyOrder(const SacStatistics& sac);

// What PyTorch adds to the discarded fractions of the curve.
inline constexpr double kCurveShift = .01;

// (discarded fraction + kCurveShift, recomputed fraction), x ascending: the
// first point is what is recomputed in any case, then one a prefix of `order`,
// and last, as PyTorch does, everything with the stored operators. Where all
// memory or all run-time is 0, that fraction is 0 throughout. Of equal
// discarded fractions, the last stays (PyTorch keeps the curve in a dict).
std::vector<std::pair<double, double>> GreedyCurve(const SacStatistics& sac,
                                                   const GreedyOrder& order);

// What PyTorch fits to be on the safe side: each x of the curve with the y of
// the point after it, so one point fewer.
std::vector<std::pair<double, double>> FittedPoints(
    const std::vector<std::pair<double, double>>& curve);

// From raw statistics what PyTorch calls SACTradeOffStats: sums, greedy curve
// and fit of FittedPoints. As in PyTorch, the number of segments is at most the
// number of fitted points - 2, at least 1. Slopes and intercepts are in
// fractions: recomputed of sac_runtime against discarded of sac_memory. Where
// there is nothing to fit (fewer than 2 points or no memory), one segment from
// what is recomputed in any case at 0 to 1 at 1. segments >= 1.
TradeoffFit FitTradeoff(const SacStatistics& sac, int segments = 2);

}  // namespace acplan::graph
