#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

namespace acplan::solver {

// Costs that differ by less than this (relative) are sums of the same numbers in another
// order.
inline constexpr double kSameCost = 1e-13;

// A corner of a cost curve, in fixed-point bytes.
struct FixedKnot {
  int64_t bytes;
  double ms;
};

// A stretch of a cost curve.
struct CostSegment {
  int64_t length;  // fixed-point bytes
  double slope;    // ms a fixed-point byte
};

// Returns the lower convex hull of (0, 0) and the points, from 0 to the last of them:
// segments of rising slope. The points have ascending bytes, at least 0. Among points with
// equal bytes only the cheapest counts; points at 0 bytes do not count.
std::vector<CostSegment> LowerHull(const std::vector<FixedKnot>& points);

// Returns the lower convex hull of (0, 0) and a unit's curve with `price` added to each
// knot: a lower bound on the cost of the module, whether it is a unit or not. Knots at and
// below 0 bytes are ignored.
std::vector<CostSegment> HullSegments(const std::vector<FixedKnot>& curve,
                                      double price);

// A lower bound on the cost of discarding n more bytes: convex, piecewise
// linear with corners at whole n, nondecreasing, 0 at and below 0, infinite
// beyond its end. Without segments, the end is 0.
class ConvexCost {
 public:
  // Returns the cost that is 0 up to `end`.
  static ConvexCost Free(int64_t end);

  // Returns the convex hull of the minimum of both.
  static ConvexCost HullOfMin(const ConvexCost& a, const ConvexCost& b);

  int64_t end() const { return ends_.empty() ? 0 : ends_.back(); }

  // Returns the value at n in O(log segments).
  double At(int64_t n) const;

  // A reader of values that is fast if n changes little from one call to the next. It
  // refers to the cost, which must outlive it.
  class Reader {
   public:
    explicit Reader(const ConvexCost& cost)
        : cost_(&cost), segment_(cost.ends_.size()) {}

    double At(int64_t n) {
      if (n <= 0) return 0;
      Move(n);
      if (segment_ == cost_->ends_.size()) return kInfinite;
      return cost_->values_[segment_] -
             cost_->slopes_[segment_] *
                 static_cast<double>(cost_->ends_[segment_] - n);
    }
    // Returns the slope of the segment that contains or ends at n; 0 at and below 0 bytes
    // and beyond the end.
    double SlopeAt(int64_t n) {
      if (n <= 0) return 0;
      Move(n);
      return segment_ == cost_->ends_.size() ? 0 : cost_->slopes_[segment_];
    }

   private:
    static constexpr double kInfinite = std::numeric_limits<double>::infinity();

    void Move(int64_t n) {
      while (segment_ > 0 && cost_->ends_[segment_ - 1] >= n) --segment_;
      while (segment_ < cost_->ends_.size() && cost_->ends_[segment_] < n) {
        ++segment_;
      }
    }

    const ConvexCost* cost_;
    size_t segment_;
  };

  // Returns the minimum over x in [lo, hi] of cost + slope (x - lo) + At(total - x), for a
  // slope >= 0; infinite if total - hi is beyond the end. O(log segments).
  double LeastSum(int64_t lo, int64_t hi, double cost, double slope,
                  int64_t total) const;

  // Returns the infimal convolution with a curve that starts at 0 and is given by segments
  // of rising slope: the least cost of n bytes split between both.
  ConvexCost Plus(const std::vector<CostSegment>& curve) const;

  // Restricts this to n <= cap; to n <= 0 if cap is negative.
  void Truncate(int64_t cap);

  // Replaces this, if it has more than `max_segments` segments, by a lower bound with the
  // same end and at most about half as many: the maximum of evenly spaced lines of it.
  void Coarsen(size_t max_segments);

 private:
  void Reserve(size_t n);
  void Append(int64_t length, double slope);

  // Indexed by segment.
  std::vector<int64_t> ends_;
  std::vector<double> values_;  // at the ends
  std::vector<double> slopes_;  // ascending
};

}  // namespace acplan::solver
