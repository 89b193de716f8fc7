#include "problems/engines/labels/completion_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

namespace acplan::problems {

namespace {

using solver::ConvexCost;
using solver::HullSegments;

// Of the bound that is carried along, where errors would add up, and of the
// bounds that are kept for all nodes together.
constexpr size_t kMostSegments = 8192;
constexpr size_t kMostKeptSegments = 4'000'000;

// Units may discard less than nothing.
constexpr int64_t kAnyNumber = int64_t{1} << 61;

}  // namespace

FixedProblem ToFixedPoint(const ModuleProblem& problem, double finest) {
  const int n = static_cast<int>(problem.nodes.size());
  double total = std::abs(problem.budget_bytes) + 1;
  double largest_base = 0;
  for (const ModuleProblem::Node& node : problem.nodes) {
    if (!node.curve.empty()) {
      total += node.curve.back().bytes + 2 * node.held_bytes;
    }
    largest_base = std::max({largest_base, std::abs(node.base_bytes),
                             std::abs(node.unit_base_bytes.value_or(0))});
  }
  const int bits = std::ilogb(total + largest_base) + 1;
  FixedProblem fixed;
  fixed.scale = std::min(finest, std::exp2(std::clamp(60 - bits, 0, 40)));
  const auto down = [&](double bytes) {
    return static_cast<int64_t>(std::floor(bytes * fixed.scale));
  };
  const auto up = [&](double bytes) {
    return static_cast<int64_t>(std::ceil(bytes * fixed.scale));
  };

  fixed.curve.resize(n);
  fixed.held.assign(n, 0);
  // Low enough for no record, and far from overflow.
  constexpr int64_t kNoNeed = -(int64_t{1} << 61);
  fixed.need.assign(n, kNoNeed);
  fixed.subtree_need.assign(n, kNoNeed);
  fixed.unit_need.assign(n, kNoNeed);
  fixed.has_units.assign(n, 0);
  for (int i = 0; i < n; ++i) {
    const ModuleProblem::Node& node = problem.nodes[i];
    for (const Knot& knot : node.curve) {
      const int64_t bytes = down(knot.bytes);
      if (!fixed.curve[i].empty() && fixed.curve[i].back().bytes >= bytes) {
        continue;
      }
      fixed.curve[i].push_back({bytes, knot.ms});
    }
    if (!node.curve.empty()) fixed.held[i] = up(node.held_bytes);
    if (node.time >= 0) {
      fixed.need[i] = up(node.base_bytes - problem.budget_bytes);
    }
  }
  for (int i = n - 1; i >= 0; --i) {
    fixed.subtree_need[i] = std::max(fixed.subtree_need[i], fixed.need[i]);
    for (int c = i + 1; c < i + problem.nodes[i].subtree_size;
         c += problem.nodes[c].subtree_size) {
      fixed.subtree_need[i] =
          std::max(fixed.subtree_need[i], fixed.subtree_need[c]);
      if (fixed.has_units[c]) fixed.has_units[i] = 1;
    }
    if (!fixed.curve[i].empty()) {
      const std::optional<double>& as_unit = problem.nodes[i].unit_base_bytes;
      fixed.has_units[i] = 1;
      fixed.unit_need[i] = (as_unit ? up(*as_unit - problem.budget_bytes)
                                    : fixed.subtree_need[i]) +
                           fixed.held[i];
      fixed.largest_need = std::max(fixed.largest_need, fixed.unit_need[i]);
    }
    fixed.largest_need = std::max(fixed.largest_need, fixed.subtree_need[i]);
  }
  fixed.need_after.assign(n, kNoNeed);
  std::vector<int> last_first(n);  // post-order, reversed
  std::iota(last_first.begin(), last_first.end(), 0);
  std::ranges::stable_sort(last_first, std::greater<>(), [&](int i) {
    return i + problem.nodes[i].subtree_size;
  });
  int64_t later = kNoNeed;
  for (const int i : last_first) {
    fixed.need_after[i] = later;
    later = std::max(later, fixed.need[i]);
  }
  int64_t later_units = kNoNeed;
  std::vector<int64_t> units_from(n + 1, kNoNeed);
  for (int i = n - 1; i >= 0; --i) {
    if (!fixed.curve[i].empty()) {
      later_units = std::max(later_units, fixed.unit_need[i]);
    }
    units_from[i] = later_units;
  }
  for (int i = 0; i < n; ++i) {
    fixed.need_after[i] = std::max(
        fixed.need_after[i], units_from[i + problem.nodes[i].subtree_size]);
  }
  return fixed;
}

CompletionBound::CompletionBound(const ModuleProblem& problem,
                                 const FixedProblem& fixed, double unit_price)
    : problem_(problem), fixed_(fixed), unit_price_(unit_price) {
  after_.resize(problem.nodes.size());
  const auto nodes =
      static_cast<size_t>(std::ranges::count(fixed.has_units, char{1}));
  most_kept_ = std::clamp<size_t>(
      kMostKeptSegments / std::max<size_t>(nodes, 1), 256, kMostSegments);
  root_ = WalkSiblings(0, static_cast<int>(problem.nodes.size()),
                       ConvexCost::Free(kAnyNumber));
}

double CompletionBound::PriceAtRoot() const {
  return ConvexCost::Reader(root_).SlopeAt(fixed_.largest_need);
}

ConvexCost CompletionBound::WalkSiblings(int begin, int end, ConvexCost rest) {
  std::vector<int> siblings;
  for (int i = begin; i < end; i += problem_.nodes[i].subtree_size) {
    siblings.push_back(i);
  }
  std::ranges::reverse(siblings);
  for (const int i : siblings) {
    rest = Walk(i, std::move(rest));
  }
  return rest;
}

ConvexCost CompletionBound::Walk(int i, ConvexCost rest) {
  const int64_t largest = fixed_.largest_need;
  if (!fixed_.has_units[i]) {
    rest.Truncate(largest - fixed_.subtree_need[i]);
    return rest;
  }
  after_[i] = rest;
  after_[i].Coarsen(most_kept_);
  ConvexCost as_unit;
  const bool is_candidate = !fixed_.curve[i].empty();
  if (is_candidate) {
    as_unit = rest.Plus(HullSegments(fixed_.curve[i], unit_price_));
    as_unit.Truncate(largest - fixed_.unit_need[i]);
  }
  if (problem_.nodes[i].must_be_unit) return as_unit;
  rest.Truncate(largest - fixed_.need[i]);
  rest =
      WalkSiblings(i + 1, i + problem_.nodes[i].subtree_size, std::move(rest));
  if (is_candidate) rest = ConvexCost::HullOfMin(rest, as_unit);
  rest.Coarsen(kMostSegments);
  return rest;
}

// The price of a unit for which the root bound under max_units is largest.
double BestUnitPrice(const ModuleProblem& problem, const FixedProblem& fixed) {
  if (!problem.max_units) return 0;
  const auto bound = [&](double price) {
    return CompletionBound(problem, fixed, price).AtRoot() -
           price * *problem.max_units;
  };
  double low = 0;
  double high = 1e-3;
  double at_high = bound(high);
  for (double best = bound(0); at_high > best && high < 1e12;) {
    best = at_high;
    high *= 4;
    at_high = bound(high);
  }
  constexpr double kGolden = 0.6180339887498949;
  double a = high - kGolden * (high - low);
  double b = low + kGolden * (high - low);
  double at_a = bound(a);
  double at_b = bound(b);
  for (int step = 0; step < 30; ++step) {
    if (at_a >= at_b) {
      high = b;
      b = a;
      at_b = at_a;
      a = high - kGolden * (high - low);
      at_a = bound(a);
    } else {
      low = a;
      a = b;
      at_a = at_b;
      b = low + kGolden * (high - low);
      at_b = bound(b);
    }
  }
  return at_a >= at_b ? a : b;
}

}  // namespace acplan::problems
