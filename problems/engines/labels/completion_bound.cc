#include "problems/engines/labels/completion_bound.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <numeric>
#include <utility>

// The bound is the recursion of the walk, run backwards, with every step made
// convex. Let Q(n) be a lower bound on the cost of discarding n more bytes from
// a point of the walk on. A unit's choices are replaced by the lower hull of
// its curve with (0, 0), and Q becomes the infimal convolution of Q and that
// hull, which for convex piecewise linear functions is a merge of segments by
// slope. "Unit or children" becomes the hull of the minimum of both. A record
// cuts the domain: the missing bytes must not exceed what may be missing there.
// A hull lies below its function and each of these steps keeps lower bounds
// lower bounds, so Q never exceeds the cost of any continuation. Its domain is
// exact, since discarding the most is best: if it is empty there is no plan.
//
// Q is kept for every node after which labels are pruned. Large problems keep
// coarser ones: fewer of the same lines, so still bounds.

namespace acplan::problems {

namespace {

using solver::ConvexCost;
using solver::FixedKnot;
using solver::HullSegments;

// The most segments of the bound that the walk carries, in which errors would
// add up, and of the bounds that are kept for all nodes together.
constexpr size_t kMostSegments = 8192;
constexpr size_t kMostKeptSegments = 4'000'000;

// A number of bytes without a lower limit: units may discard less than nothing.
constexpr int64_t kAnyNumber = int64_t{1} << 61;

// A need lower than any record's, and far from overflow.
constexpr int64_t kNoNeed = -(int64_t{1} << 61);

// Returns a power of two, at most `finest`, with which sums of bytes do not
// overflow.
double ScaleOf(const ModuleProblem& problem, double finest) {
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
  return std::min(finest, std::exp2(std::clamp(60 - bits, 0, 40)));
}

int64_t RoundedDown(double bytes, double scale) {
  return static_cast<int64_t>(std::floor(bytes * scale));
}

int64_t RoundedUp(double bytes, double scale) {
  return static_cast<int64_t>(std::ceil(bytes * scale));
}

std::vector<FixedKnot> FixedCurve(const std::vector<Knot>& curve,
                                  double scale) {
  std::vector<FixedKnot> fixed;
  for (const Knot& knot : curve) {
    const int64_t bytes = RoundedDown(knot.bytes, scale);
    if (!fixed.empty() && fixed.back().bytes >= bytes) continue;
    fixed.push_back({bytes, knot.ms});
  }
  return fixed;
}

// Sets the needs of a node, as a record and as a unit, from those inside of it.
void SetNeedsInside(const ModuleProblem& problem, int i, FixedProblem& fixed) {
  const ModuleProblem::Node& node = problem.nodes[i];
  fixed.subtree_need[i] = std::max(fixed.subtree_need[i], fixed.need[i]);
  for (int c = i + 1; c < i + node.subtree_size;
       c += problem.nodes[c].subtree_size) {
    fixed.subtree_need[i] =
        std::max(fixed.subtree_need[i], fixed.subtree_need[c]);
    if (fixed.has_units[c]) fixed.has_units[i] = 1;
  }
  if (!fixed.curve[i].empty()) {
    fixed.has_units[i] = 1;
    fixed.unit_need[i] =
        (node.unit_base_bytes
             ? RoundedUp(*node.unit_base_bytes - problem.budget_bytes,
                         fixed.scale)
             : fixed.subtree_need[i]) +
        fixed.held_bytes[i];
    fixed.largest_need = std::max(fixed.largest_need, fixed.unit_need[i]);
  }
  fixed.largest_need = std::max(fixed.largest_need, fixed.subtree_need[i]);
}

// Returns, by node, the largest need of any step after it: the records that
// come later in post-order, and the units that begin later in pre-order.
std::vector<int64_t> NeedsAfter(const ModuleProblem& problem,
                                const FixedProblem& fixed) {
  const int n = static_cast<int>(problem.nodes.size());
  std::vector<int64_t> need_after(n, kNoNeed);
  std::vector<int> last_first(n);  // post-order, reversed
  std::iota(last_first.begin(), last_first.end(), 0);
  std::ranges::stable_sort(last_first, std::greater<>(), [&](int i) {
    return i + problem.nodes[i].subtree_size;
  });
  int64_t later = kNoNeed;
  for (const int i : last_first) {
    need_after[i] = later;
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
    need_after[i] =
        std::max(need_after[i], units_from[i + problem.nodes[i].subtree_size]);
  }
  return need_after;
}

}  // namespace

FixedProblem ToFixedPoint(const ModuleProblem& problem, double finest) {
  const int n = static_cast<int>(problem.nodes.size());
  FixedProblem fixed;
  fixed.scale = ScaleOf(problem, finest);
  fixed.held_bytes.assign(n, 0);
  fixed.need.assign(n, kNoNeed);
  fixed.subtree_need.assign(n, kNoNeed);
  fixed.unit_need.assign(n, kNoNeed);
  fixed.has_units.assign(n, 0);
  for (int i = 0; i < n; ++i) {
    const ModuleProblem::Node& node = problem.nodes[i];
    fixed.curve.push_back(FixedCurve(node.curve, fixed.scale));
    if (!node.curve.empty()) {
      fixed.held_bytes[i] = RoundedUp(node.held_bytes, fixed.scale);
    }
    if (node.time >= 0) {
      fixed.need[i] =
          RoundedUp(node.base_bytes - problem.budget_bytes, fixed.scale);
    }
  }
  for (int i = n - 1; i >= 0; --i) SetNeedsInside(problem, i, fixed);
  fixed.need_after = NeedsAfter(problem, fixed);
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

double PriceOfAByte(const ModuleProblem& problem) {
  const FixedProblem fixed = ToFixedPoint(problem, 1);
  return CompletionBound(problem, fixed, 0).PriceAtRoot() * fixed.scale;
}

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
