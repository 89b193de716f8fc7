#include "problems/engines/labels/open_groups.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <span>
#include <utility>

namespace acplan::problems {

using solver::ConvexCost;

namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

// Bounds of all kinds at once would take memory in the square of their number.
constexpr size_t kKindsABlock = 64;

// A price that the bound gives to some labels, and the most that any of them is
// below the threshold.
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
  size_t kept = 0;
  for (const PointLabel& label : labels) {
    const int64_t missing = bar.largest_need - label.bytes;
    const double bound = ToMs(label.ticks) + reader.At(missing) - bar.credit;
    if (bound == kInf || bound >= bar.threshold) continue;
    labels[kept++] = label;
    const double slope = reader.SlopeAt(missing);
    const double slack = bar.threshold - bound;
    if (!prices.empty() && prices.back().slope == slope) {
      prices.back().slack = std::max(prices.back().slack, slack);
    } else {
      prices.push_back({slope, slack});
    }
  }
  labels.resize(kept);
  return {.labels = std::move(labels), .prices = std::move(prices)};
}

struct CopyRange {
  int fewest, most;
};

// How many copies of a kind may be recomputed in a plan below the threshold. At a
// price, a copy on the other side than the relaxation has it costs its reduced
// cost more, so as many may change sides as the slack pays for.
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

}  // namespace

TickPolicies ToTicks(const JointProblem::Policies& policies) {
  const auto ticks = [](double ms) {
    return static_cast<int64_t>(std::llround(ms * kTicksAMs));
  };
  TickPolicies result{.base_bytes = policies.base_bytes,
                      .base_ticks = ticks(policies.base_ms)};
  for (const GroupKind& kind : policies.kinds) {
    result.kinds.push_back({kind.bytes, ticks(kind.ms), kind.count});
    result.relaxed.push_back(
        {kind.bytes * kind.count, result.kinds.back().Slope() / kTicksAMs});
  }
  std::ranges::stable_sort(result.relaxed, {}, &solver::CostSegment::slope);
  return result;
}

OpenedUnit OpenUnit(const TickPolicies& unit, const ConvexCost& relaxed,
                    const PassBar& bar, PointLabels labels) {
  auto [promising, prices] = KeepPromising(std::move(labels), relaxed, bar);
  OpenedUnit opened{.labels = std::move(promising), .settled = {}, .kinds = {}};
  if (opened.labels.empty()) return opened;
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
  return {.with = in_block_[k],
          .without = k + 1 < in_block_.size() ? in_block_[k + 1]
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
