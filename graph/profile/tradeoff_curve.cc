#include "graph/profile/tradeoff_curve.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <set>

#include "graph/profile/piecewise_linear_fit.h"

namespace acplan::graph {
namespace {

constexpr double kMostMsps = std::numeric_limits<double>::max();

// Returns the operators of these heads with their groups.
std::set<int> WithGroups(const GreedyOrder& order,
                         const std::vector<int>& heads) {
  std::set<int> ops;
  for (const int head : heads) {
    ops.insert(head);
    for (const auto* groups :
         {&order.inplace_op_groups, &order.random_ops_group}) {
      const auto group = groups->find(head);
      if (group == groups->end()) continue;
      ops.insert(group->second.begin(), group->second.end());
    }
  }
  return ops;
}

struct SetCost {
  int64_t memory = 0;
  double runtime = 0;
};

SetCost CostOf(const SacStatistics& sac, const std::set<int>& ops) {
  SetCost cost;
  for (const int op : ops) {
    cost.memory += sac.memory[op];
    cost.runtime += sac.runtimes[op];
  }
  return cost;
}

// Sorts items by msps. Rounding does not decide between equals: the smaller head is first.
void SortItems(std::vector<GreedyItem>& items) {
  std::ranges::sort(items, {}, &GreedyItem::head);
  std::ranges::stable_sort(items, std::ranges::greater(), &GreedyItem::msps);
  for (auto first = items.begin(); first != items.end();) {
    const double least = first->msps - 1e-9 * first->msps;
    const auto last =
        std::find_if(first, items.end(),
                     [&](const GreedyItem& item) { return item.msps < least; });
    std::ranges::sort(first, last, {}, &GreedyItem::head);
    first = last;
  }
}

double RecomputedInAnyCase(const SacStatistics& sac, const GreedyOrder& order,
                           double runtime) {
  const double ms =
      CostOf(sac, WithGroups(order, order.recomputed_ops)).runtime;
  return runtime > 0 ? ms / runtime : 0;
}

}  // namespace

GreedyOrder ComputeGreedyOrder(const SacStatistics& sac) {
  GreedyOrder order;
  const std::map<int, int> head_of(sac.inplace_ops.begin(),
                                   sac.inplace_ops.end());
  const std::set<int> random(sac.rand_ops.begin(), sac.rand_ops.end());

  std::map<int, std::set<int>> groups;
  for (const auto& [op, head] : head_of) groups[head].insert({head, op});
  for (const auto& [head, ops] : groups) {
    order.inplace_op_groups[head] = {ops.begin(), ops.end()};
  }
  if (!random.empty()) {
    order.random_ops_group[*random.begin()] = {random.begin(), random.end()};
  }

  std::set<int> stored;
  if (sac.force_store_random && !random.empty()) stored.insert(*random.begin());
  for (const auto& [head, ops] : groups) {
    const bool is_random =
        std::ranges::any_of(ops, [&](int op) { return random.contains(op); });
    if (head_of.contains(head) || (sac.force_store_random && is_random)) {
      stored.insert(head);
    }
  }
  order.stored_ops = {stored.begin(), stored.end()};
  const std::set<int> recomputed(sac.view_like_ops.begin(),
                                 sac.view_like_ops.end());
  order.recomputed_ops = {recomputed.begin(), recomputed.end()};

  for (int op = 0; op < static_cast<int>(sac.memory.size()); ++op) {
    const bool is_head =
        groups.contains(op) || order.random_ops_group.contains(op);
    const bool is_member =
        head_of.contains(op) || random.contains(op) || recomputed.contains(op);
    if (stored.contains(op) || (is_member && !is_head)) continue;
    const std::set<int> ops = WithGroups(order, {op});
    const auto [memory, runtime] = CostOf(sac, ops);
    order.items.push_back(
        {.head = op,
         .ops = {ops.begin(), ops.end()},
         .memory = memory,
         .runtime = runtime,
         .msps = runtime > 0 ? std::min(static_cast<double>(memory) / runtime,
                                        kMostMsps)
                             : kMostMsps});
  }
  SortItems(order.items);
  return order;
}

std::vector<std::pair<double, double>> GreedyCurve(const SacStatistics& sac,
                                                   const GreedyOrder& order) {
  const double memory = static_cast<double>(
      std::accumulate(sac.memory.begin(), sac.memory.end(), int64_t{0}));
  const double runtime =
      std::accumulate(sac.runtimes.begin(), sac.runtimes.end(), 0.0);
  std::vector<std::pair<double, double>> curve;
  SetCost sum;
  const auto add = [&](const SetCost& cost) {
    sum.memory += cost.memory;
    sum.runtime += cost.runtime;
    const double x =
        (memory > 0 ? static_cast<double>(sum.memory) / memory : 0) +
        kCurveShift;
    if (!curve.empty() && curve.back().first == x) curve.pop_back();
    curve.emplace_back(x, runtime > 0 ? sum.runtime / runtime : 0);
  };
  add(CostOf(sac, WithGroups(order, order.recomputed_ops)));
  for (const GreedyItem& item : order.items) add({item.memory, item.runtime});
  add(CostOf(sac, WithGroups(order, order.stored_ops)));
  return curve;
}

std::vector<std::pair<double, double>> FittedPoints(
    const std::vector<std::pair<double, double>>& curve) {
  std::vector<std::pair<double, double>> points;
  for (size_t i = 1; i < curve.size(); ++i) {
    points.emplace_back(curve[i - 1].first, curve[i].second);
  }
  return points;
}

TradeoffFit FitTradeoff(const SacStatistics& sac, int segments) {
  const GreedyOrder order = ComputeGreedyOrder(sac);
  TradeoffFit fit;
  fit.sac_runtime =
      std::accumulate(sac.runtimes.begin(), sac.runtimes.end(), 0.0);
  fit.sac_memory =
      std::accumulate(sac.memory.begin(), sac.memory.end(), int64_t{0});
  fit.tradeoff_curve = GreedyCurve(sac, order);
  const auto points = FittedPoints(fit.tradeoff_curve);
  PiecewiseLinear f;
  if (points.size() < 2 || fit.sac_memory == 0) {
    const double least = RecomputedInAnyCase(sac, order, fit.sac_runtime);
    f = {{1 - least}, {least}, {0, 1}};
  } else {
    const int most = std::max(static_cast<int>(points.size()) - 2, 1);
    f = FitPiecewiseLinear(points, std::min(segments, most));
  }
  fit.n_segments = static_cast<int>(f.slopes.size());
  fit.slopes = {f.slopes.begin(), f.slopes.end()};
  fit.intercepts = {f.intercepts.begin(), f.intercepts.end()};
  fit.breakpoints = {f.breakpoints.begin(), f.breakpoints.end()};
  return fit;
}

}  // namespace acplan::graph
