#include "problems/engines/labels/open_groups.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

#include "solver/infinity.h"

namespace acplan::problems {

using solver::kInfinity;

using solver::ConvexCost;

namespace {

// The number of kinds in a block. Bounds of all kinds at once would take memory
// in the square of their number.
constexpr size_t kKindsABlock = 64;

// A price that the bound gives to some labels, and the most by which any of
// them is below the threshold.
struct Price {
  double slope, slack;  // ms a byte, ms
};

struct PricedLabels {
  PointLabels labels;
  std::vector<Price> prices;
};

// Drops labels that cannot lead to a better plan.
PricedLabels KeepPromising(PointLabels labels, const ConvexCost& relaxed,
                           const PassBar& bar) {
  std::vector<Price> prices;
  ConvexCost::Reader reader(relaxed);
  size_t kept_count = 0;
  for (const PointLabel& label : labels) {
    const int64_t missing = bar.largest_need - label.bytes;
    const double bound = ToMs(label.ticks) + reader.At(missing) - bar.credit;
    if (bound == kInfinity || bound >= bar.threshold) continue;
    labels[kept_count++] = label;
    const double slope = reader.SlopeAt(missing);
    const double slack = bar.threshold - bound;
    if (!prices.empty() && prices.back().slope == slope) {
      prices.back().slack = std::max(prices.back().slack, slack);
    } else {
      prices.push_back({slope, slack});
    }
  }
  labels.resize(kept_count);
  return {.labels = std::move(labels), .prices = std::move(prices)};
}

struct CopyRange {
  int fewest, most;
};

// Returns the range of copies of a kind that a plan below the threshold may
// recompute. At a price, a copy on the other side than in the relaxation costs
// its reduced cost more, so as many copies may change sides as the slack pays
// for.
CopyRange CopiesToTry(const TickPolicies::Kind& kind,
                      std::span<const Price> prices) {
  const auto bytes = static_cast<double>(kind.bytes);
  const double ms = ToMs(kind.ticks);
  CopyRange range{.fewest = kind.count, .most = 0};
  for (const Price& price : prices) {
    const double reduced = ms - price.slope * bytes;
    const double flips = std::floor(price.slack * (1 + 1e-9) /
                                    std::max(std::abs(reduced), 1e-300));
    const int copies =
        flips >= kind.count ? kind.count : static_cast<int>(flips);
    if (reduced <= 0) {
      range.fewest = std::min(range.fewest, kind.count - copies);
      range.most = kind.count;
    }
    if (reduced >= 0) {
      range.fewest = 0;
      range.most = std::max(range.most, copies);
    }
  }
  return range;
}

// Returns the points that a plan below the threshold may use. At a price, a
// point costs its reduced cost more than the best one does, so it is out if
// that exceeds the slack.
std::vector<OpenPoint> PointsToTry(const TickPolicies& unit,
                                   std::span<const Price> prices) {
  std::vector<char> is_open(unit.points.size(), 0);
  std::vector<double> reduced(unit.points.size());
  for (const Price& price : prices) {
    for (size_t p = 0; p < reduced.size(); ++p) {
      reduced[p] = ToMs(unit.points[p].ticks) -
                   price.slope * static_cast<double>(unit.points[p].bytes);
    }
    const double most =
        *std::ranges::min_element(reduced) + price.slack * (1 + 1e-9);
    for (size_t p = 0; p < reduced.size(); ++p) {
      if (reduced[p] <= most) is_open[p] = 1;
    }
  }
  std::vector<OpenPoint> open;
  for (size_t p = 0; p < is_open.size(); ++p) {
    if (!is_open[p]) continue;
    open.push_back(
        {static_cast<int>(p), unit.points[p].bytes, unit.points[p].ticks});
  }
  return open;
}

}  // namespace

TickPolicies ToTicks(const JointProblem::Policies& policies) {
  const auto ticks = [](double ms) {
    return static_cast<int64_t>(std::llround(ms * kTicksAMs));
  };
  TickPolicies result{.base_bytes = policies.base_bytes,
                      .base_ticks = ticks(policies.base_ms)};
  result.kinds.reserve(policies.kinds.size());
  result.points.reserve(policies.points.size());
  result.relaxed.reserve(policies.kinds.size() + policies.points.size());
  for (const GroupKind& kind : policies.kinds) {
    result.kinds.push_back({kind.bytes, ticks(kind.ms), kind.count});
    result.relaxed.push_back(
        {kind.bytes * kind.count, result.kinds.back().Slope() / kTicksAMs});
  }
  for (const PolicyPoint& point : policies.points) {
    result.points.push_back(
        {point.bytes - result.base_bytes, ticks(point.ms) - result.base_ticks});
  }
  const std::vector<PolicyPoint> hull = HullPoints(policies.points);
  for (size_t k = 1; k < hull.size(); ++k) {
    const int64_t length = hull[k].bytes - hull[k - 1].bytes;
    const double rise = ToMs(ticks(hull[k].ms) - ticks(hull[k - 1].ms));
    result.relaxed.push_back({length, rise / static_cast<double>(length)});
  }
  std::ranges::stable_sort(result.relaxed, {}, &solver::CostSegment::slope);
  return result;
}

OpenedUnit OpenUnit(const TickPolicies& unit, const ConvexCost& relaxed,
                    const PassBar& bar, PointLabels labels) {
  auto [promising, prices] = KeepPromising(std::move(labels), relaxed, bar);
  OpenedUnit opened{.labels = std::move(promising), .settled = {}, .kinds = {}};
  if (opened.labels.empty()) return opened;
  if (!unit.points.empty()) {
    opened.points = PointsToTry(unit, prices);
    return opened;
  }
  const double best_slope =
      std::ranges::max_element(prices, {}, &Price::slack)->slope;
  for (size_t k = 0; k < unit.kinds.size(); ++k) {
    const TickPolicies::Kind& kind = unit.kinds[k];
    const auto [fewest, most] = CopiesToTry(kind, prices);
    opened.bytes += kind.bytes * fewest;
    opened.ticks += kind.ticks * fewest;
    opened.settled.push_back(fewest);
    if (most > fewest) {
      opened.kinds.push_back(
          {static_cast<int>(k), kind.bytes, kind.ticks, most - fewest,
           std::abs(ToMs(kind.ticks) -
                    best_slope * static_cast<double>(kind.bytes))});
    }
  }
  std::ranges::stable_sort(opened.kinds, std::greater<>(), &OpenKind::distance);
  return opened;
}

// Merges lists like the carries of a binary counter, so that beaten labels go
// early and each label is merged a logarithmic number of times.
PointLabels SumsWith(const std::vector<OpenPoint>& points,
                     const PointLabels& labels, const ConvexCost& rest,
                     const PassBar& bar) {
  const double limit = bar.threshold + bar.credit;
  std::vector<PointLabels> carries;
  const auto merge_last = [&carries] {
    const PointLabels last = std::move(carries.back());
    carries.pop_back();
    if (!last.empty()) carries.back() = Envelope(carries.back(), last);
  };
  for (size_t p = 0; p < points.size(); ++p) {
    ConvexCost::Reader reader(rest);
    PointLabels moved_labels;
    for (const PointLabel& label : labels) {
      const PointLabel next = {label.bytes + points[p].bytes,
                               label.ticks + points[p].ticks, label.move,
                               static_cast<uint32_t>(points[p].place)};
      const double bound =
          ToMs(next.ticks) + reader.At(bar.largest_need - next.bytes);
      if (bound < limit) moved_labels.push_back(next);
    }
    carries.push_back(std::move(moved_labels));
    for (size_t count = p + 1; count % 2 == 0; count /= 2) merge_last();
  }
  while (carries.size() > 1) merge_last();
  return carries.empty() ? PointLabels() : std::move(carries.back());
}

BoundsByKind::BoundsByKind(const std::vector<OpenKind>& kinds, ConvexCost after)
    : kinds_(kinds),
      from_block_((kinds.size() + kKindsABlock - 1) / kKindsABlock + 1) {
  from_block_.back() = std::move(after);
  for (size_t b = from_block_.size() - 1; b-- > 1;) {
    from_block_[b] = OfBlock(b).front();
  }
}

BoundsByKind::Bounds BoundsByKind::At(size_t kind) {
  const size_t block = kind / kKindsABlock;
  if (block != block_) {
    in_block_ = OfBlock(block);
    block_ = block;
  }
  const size_t k = kind % kKindsABlock;
  return {.from_kind = in_block_[k],
          .after_kind = k + 1 < in_block_.size() ? in_block_[k + 1]
                                                 : from_block_[block + 1]};
}

std::vector<ConvexCost> BoundsByKind::OfBlock(size_t block) const {
  const size_t begin = block * kKindsABlock;
  const size_t end = std::min(kinds_.size(), begin + kKindsABlock);
  std::vector<ConvexCost> bounds(end - begin);
  const ConvexCost* later = &from_block_[block + 1];
  for (size_t k = end; k-- > begin;) {
    const OpenKind& kind = kinds_[k];
    bounds[k - begin] =
        later->Plus({{kind.bytes * kind.copies,
                      static_cast<double>(kind.ticks) /
                          static_cast<double>(kind.bytes) / kTicksAMs}});
    later = &bounds[k - begin];
  }
  return bounds;
}

}  // namespace acplan::problems
