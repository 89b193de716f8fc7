#include "solver/labels/convex_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "solver/infinity.h"

namespace acplan::solver {

namespace {}  // namespace

std::vector<CostSegment> LowerHull(const std::vector<FixedKnot>& points) {
  std::vector<FixedKnot> hull{{0, 0.0}};
  hull.reserve(points.size() + 1);
  for (const FixedKnot& point : points) {
    if (point.bytes == hull.back().bytes) {
      if (point.ms >= hull.back().ms || point.bytes == 0) continue;
      hull.pop_back();
    }
    while (hull.size() >= 2) {
      const FixedKnot& last = hull[hull.size() - 1];
      const FixedKnot& before = hull[hull.size() - 2];
      if ((last.ms - before.ms) *
              static_cast<double>(point.bytes - last.bytes) <
          (point.ms - last.ms) *
              static_cast<double>(last.bytes - before.bytes)) {
        break;
      }
      hull.pop_back();
    }
    hull.push_back(point);
  }
  std::vector<CostSegment> segments;
  segments.reserve(hull.size() - 1);
  for (size_t k = 1; k < hull.size(); ++k) {
    const int64_t length = hull[k].bytes - hull[k - 1].bytes;
    segments.push_back(
        {length, (hull[k].ms - hull[k - 1].ms) / static_cast<double>(length)});
  }
  return segments;
}

std::vector<CostSegment> HullSegments(const std::vector<FixedKnot>& curve,
                                      double price) {
  std::vector<FixedKnot> points;
  points.reserve(curve.size());
  for (const FixedKnot& knot : curve) {
    if (knot.bytes > 0) points.push_back({knot.bytes, knot.ms + price});
  }
  return LowerHull(points);
}

ConvexCost ConvexCost::Free(int64_t end) {
  ConvexCost cost;
  cost.Append(end, 0);
  return cost;
}

ConvexCost ConvexCost::HullOfMin(const ConvexCost& a, const ConvexCost& b) {
  std::vector<FixedKnot> points;
  points.reserve(a.ends_.size() + b.ends_.size());
  size_t i = 0;
  size_t j = 0;
  while (i < a.ends_.size() || j < b.ends_.size()) {
    if (j == b.ends_.size() ||
        (i < a.ends_.size() && a.ends_[i] <= b.ends_[j])) {
      points.push_back({a.ends_[i], a.values_[i]});
      ++i;
    } else {
      points.push_back({b.ends_[j], b.values_[j]});
      ++j;
    }
  }
  const std::vector<CostSegment> hull = LowerHull(points);
  ConvexCost result;
  result.Reserve(hull.size());
  for (const CostSegment& segment : hull) {
    result.Append(segment.length, segment.slope);
  }
  return result;
}

double ConvexCost::At(int64_t n) const {
  if (n <= 0) return 0;
  const auto it = std::lower_bound(ends_.begin(), ends_.end(), n);
  if (it == ends_.end()) return kInfinity;
  const size_t k = static_cast<size_t>(it - ends_.begin());
  return values_[k] - slopes_[k] * static_cast<double>(ends_[k] - n);
}

double ConvexCost::LeastSum(int64_t lo, int64_t hi, double cost, double slope,
                            int64_t total) const {
  const int64_t first = std::max(lo, total - end());
  if (first > hi) return kInfinity;
  int64_t x = first;
  if (hi > first) {
    // As x grows, this falls faster than the piece rises as long as the slope of this
    // exceeds the slope of the piece.
    const auto first_steeper = std::partition_point(
        slopes_.begin(), slopes_.end(), [&](double s) { return s <= slope; });
    const size_t k = static_cast<size_t>(first_steeper - slopes_.begin());
    const int64_t flat_until = k == 0 ? 0 : ends_[k - 1];
    x = std::clamp(total - flat_until, first, hi);
  }
  return cost + slope * static_cast<double>(x - lo) + At(total - x);
}

ConvexCost ConvexCost::Plus(const std::vector<CostSegment>& curve) const {
  ConvexCost sum;
  sum.Reserve(slopes_.size() + curve.size());
  size_t a = 0;
  size_t b = 0;
  while (a < slopes_.size() || b < curve.size()) {
    if (b == curve.size() ||
        (a < slopes_.size() && slopes_[a] <= curve[b].slope)) {
      sum.Append(ends_[a] - (a == 0 ? 0 : ends_[a - 1]), slopes_[a]);
      ++a;
    } else {
      sum.Append(curve[b].length, curve[b].slope);
      ++b;
    }
  }
  return sum;
}

void ConvexCost::Truncate(int64_t cap) {
  cap = std::max<int64_t>(cap, 0);
  while (!ends_.empty() && ends_.back() > cap) {
    const size_t k = ends_.size() - 1;
    const int64_t begin = k == 0 ? 0 : ends_[k - 1];
    if (begin < cap) {
      values_[k] -= slopes_[k] * static_cast<double>(ends_[k] - cap);
      ends_[k] = cap;
      return;
    }
    ends_.pop_back();
    values_.pop_back();
    slopes_.pop_back();
  }
}

void ConvexCost::Coarsen(size_t max_segments) {
  if (slopes_.size() <= max_segments) return;
  const size_t step = (2 * slopes_.size() + max_segments - 1) / max_segments;
  const int64_t last_end = end();
  const auto line_at = [this](size_t k, int64_t n) {
    return values_[k] - slopes_[k] * static_cast<double>(ends_[k] - n);
  };
  ConvexCost coarse;
  coarse.Reserve(slopes_.size() / step + 2);
  size_t line = 0;
  int64_t begin = 0;
  while (true) {
    const size_t next = std::min(line + step, slopes_.size() - 1);
    int64_t until = last_end;
    if (next != line) {
      // Changing to the steeper line late keeps the result below both lines.
      const double difference =
          line_at(line, ends_[line]) - line_at(next, ends_[line]);
      until = ends_[line] + static_cast<int64_t>(std::ceil(
                                difference / (slopes_[next] - slopes_[line])));
      until = std::clamp(until, begin, last_end);
    }
    coarse.Append(until - begin, slopes_[line]);
    begin = until;
    if (next == line) break;
    line = next;
  }
  *this = std::move(coarse);
}

void ConvexCost::Reserve(size_t n) {
  ends_.reserve(n);
  values_.reserve(n);
  slopes_.reserve(n);
}

void ConvexCost::Append(int64_t length, double slope) {
  if (length <= 0) return;
  // Equal blocks give slopes that are equal up to rounding: they become one segment.
  if (!slopes_.empty() && slope <= slopes_.back() * (1 + kSameCost)) {
    ends_.back() += length;
    values_.back() += slopes_.back() * static_cast<double>(length);
    return;
  }
  ends_.push_back(end() + length);
  values_.push_back((values_.empty() ? 0 : values_.back()) +
                    slope * static_cast<double>(length));
  slopes_.push_back(slope);
}

}  // namespace acplan::solver
