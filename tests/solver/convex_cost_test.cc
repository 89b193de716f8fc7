#include "solver/labels/convex_cost.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>
#include <vector>

#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Enough;
using test_support::Repetitions;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kTolerance = 1e-9;

using Random = std::mt19937;

// Returns a slope; half of them are eighths, so that some are equal, or 0.
double RandomSlope(Random& random) {
  if (random() % 2 == 0) return static_cast<double>(random() % 24) / 8;
  return std::uniform_real_distribution<double>(0, 3)(random);
}

std::vector<CostSegment> RandomSegments(Random& random, int most_segments = 6) {
  std::vector<double> slopes(random() % (most_segments + 1));
  for (double& slope : slopes) slope = RandomSlope(random);
  std::ranges::sort(slopes);
  std::vector<CostSegment> segments;
  for (const double slope : slopes) {
    segments.push_back({1 + static_cast<int64_t>(random() % 7), slope});
  }
  return segments;
}

ConvexCost FromSegments(const std::vector<CostSegment>& segments) {
  return ConvexCost().Plus(segments);
}

// Returns the values at 0, 1, ..., end.
std::vector<double> Values(const std::vector<CostSegment>& segments) {
  std::vector<double> values{0};
  for (const CostSegment& segment : segments) {
    for (int64_t n = 0; n < segment.length; ++n) {
      values.push_back(values.back() + segment.slope);
    }
  }
  return values;
}

void ExpectValues(const ConvexCost& cost, const std::vector<double>& values) {
  const auto end = static_cast<int64_t>(values.size()) - 1;
  EXPECT_EQ(cost.end(), end);
  for (int64_t n = 0; n <= end; ++n) {
    EXPECT_NEAR(cost.At(n), values[n], kTolerance) << n;
  }
  EXPECT_EQ(cost.At(-1), 0);
  EXPECT_EQ(cost.At(end + 1), kInf);
}

// Returns the lower hull of points (n, values[n]) at every n; infinite values
// are no points.
std::vector<double> NaiveHull(const std::vector<double>& values) {
  std::vector<double> hull = values;
  for (size_t n = 0; n < values.size(); ++n) {
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = n + 1; j < values.size(); ++j) {
        const double share =
            static_cast<double>(n - i) / static_cast<double>(j - i);
        hull[n] =
            std::min(hull[n], values[i] * (1 - share) + values[j] * share);
      }
    }
  }
  return hull;
}

TEST(ConvexCost, AtIsTheSumOfTheSlopes) {
  Random random(1);
  for (int round = 0; round < Repetitions(1000) && !testing::Test::HasFailure();
       ++round) {
    SCOPED_TRACE(round);
    const std::vector<CostSegment> segments = RandomSegments(random);
    ExpectValues(FromSegments(segments), Values(segments));
  }
}

TEST(ConvexCost, FreeCostsNothingUpToItsEnd) {
  ExpectValues(ConvexCost::Free(4), std::vector<double>(5, 0));
  ExpectValues(ConvexCost::Free(0), {0});
}

TEST(ConvexCost, PlusIsTheInfimalConvolution) {
  Random random(2);
  for (int round = 0; round < Repetitions(1000) && !testing::Test::HasFailure();
       ++round) {
    SCOPED_TRACE(round);
    const std::vector<CostSegment> first = RandomSegments(random);
    const std::vector<CostSegment> second = RandomSegments(random);
    const std::vector<double> a = Values(first);
    const std::vector<double> b = Values(second);
    std::vector<double> least(a.size() + b.size() - 1, kInf);
    for (size_t i = 0; i < a.size(); ++i) {
      for (size_t j = 0; j < b.size(); ++j) {
        least[i + j] = std::min(least[i + j], a[i] + b[j]);
      }
    }
    ExpectValues(FromSegments(first).Plus(second), least);
  }
}

TEST(ConvexCost, HullOfMinIsTheLowerHullOfBoth) {
  Random random(3);
  for (int round = 0; round < Repetitions(1000) && !testing::Test::HasFailure();
       ++round) {
    SCOPED_TRACE(round);
    const std::vector<CostSegment> first = RandomSegments(random);
    const std::vector<CostSegment> second = RandomSegments(random);
    std::vector<double> least = Values(first);
    const std::vector<double> others = Values(second);
    least.resize(std::max(least.size(), others.size()), kInf);
    for (size_t n = 0; n < others.size(); ++n) {
      least[n] = std::min(least[n], others[n]);
    }
    ExpectValues(
        ConvexCost::HullOfMin(FromSegments(first), FromSegments(second)),
        NaiveHull(least));
  }
}

TEST(ConvexCost, TruncateLeavesTheRestAlone) {
  Random random(4);
  for (int round = 0; round < Repetitions(1000) && !testing::Test::HasFailure();
       ++round) {
    SCOPED_TRACE(round);
    const std::vector<CostSegment> segments = RandomSegments(random);
    ConvexCost cost = FromSegments(segments);
    std::vector<double> values = Values(segments);
    const int64_t cap = static_cast<int64_t>(random() % 50) - 5;
    cost.Truncate(cap);
    const auto remaining_size =
        static_cast<size_t>(std::max<int64_t>(cap, 0)) + 1;
    if (remaining_size < values.size()) values.resize(remaining_size);
    ExpectValues(cost, values);
  }
}

TEST(ConvexCost, LeastSumIsTheLeastOfAllPoints) {
  Random random(5);
  int finite = 0;
  for (int round = 0; round < Repetitions(5000) && !testing::Test::HasFailure();
       ++round) {
    SCOPED_TRACE(round);
    const ConvexCost cost = FromSegments(RandomSegments(random));
    const auto lo = static_cast<int64_t>(random() % 20);
    const int64_t hi = lo + static_cast<int64_t>(random() % 12);
    const auto total = static_cast<int64_t>(random() % 50);
    const double at_lo = RandomSlope(random);
    const double slope = RandomSlope(random);
    double least = kInf;
    for (int64_t x = lo; x <= hi; ++x) {
      const double sum =
          at_lo + slope * static_cast<double>(x - lo) + cost.At(total - x);
      least = std::min(least, sum);
    }
    const double least_sum = cost.LeastSum(lo, hi, at_lo, slope, total);
    if (least == kInf) {
      EXPECT_EQ(least_sum, kInf);
    } else {
      EXPECT_NEAR(least_sum, least, kTolerance);
      ++finite;
    }
  }
  EXPECT_GT(finite, Enough(1000));
}

// Returns the number of different steps from one whole number to the next.
int StepsOf(const ConvexCost& cost) {
  int steps = 0;
  double last = -1;
  for (int64_t n = 0; n < cost.end(); ++n) {
    const double step = cost.At(n + 1) - cost.At(n);
    if (step > last + kTolerance) ++steps;
    last = step;
  }
  return steps;
}

TEST(ConvexCost, CoarsenedIsALowerBoundWithTheSameEnds) {
  Random random(6);
  int coarser = 0;
  for (int round = 0; round < Repetitions(1000) && !testing::Test::HasFailure();
       ++round) {
    SCOPED_TRACE(round);
    const ConvexCost exact = FromSegments(RandomSegments(random, 40));
    ConvexCost cost = exact;
    const size_t most = 2 + random() % 30;
    cost.Coarsen(most);
    EXPECT_EQ(cost.end(), exact.end());
    EXPECT_EQ(cost.At(0), 0);
    EXPECT_EQ(cost.At(exact.end() + 1), kInf);
    for (int64_t n = 0; n < exact.end(); ++n) {
      EXPECT_LE(cost.At(n), exact.At(n) + kTolerance) << n;
      EXPECT_LE(cost.At(n), cost.At(n + 1) + kTolerance) << n;
    }
    if (StepsOf(exact) > static_cast<int>(most)) {
      EXPECT_LE(StepsOf(cost), static_cast<int>(most) / 2 + 2);
      ++coarser;
    }
  }
  EXPECT_GT(coarser, Enough(200));
}

TEST(ConvexCost, FewSegmentsAreNotCoarsened) {
  const std::vector<CostSegment> segments{{3, 0.5}, {4, 1}, {2, 7}};
  ConvexCost cost = FromSegments(segments);
  cost.Coarsen(3);
  ExpectValues(cost, Values(segments));
}

TEST(LowerHull, HasTheOriginAndTheLastPoint) {
  const std::vector<CostSegment> hull =
      LowerHull({{0, 5.0}, {2, 4.0}, {2, 1.0}, {3, 3.0}, {4, 2.0}});
  ASSERT_EQ(hull.size(), 1u);
  EXPECT_EQ(hull[0].length, 4);
  EXPECT_EQ(hull[0].slope, 0.5);
  EXPECT_TRUE(LowerHull({}).empty());
}

TEST(HullSegments, AreBelowTheCurveAndItsPrice) {
  Random random(7);
  for (int round = 0; round < Repetitions(1000) && !testing::Test::HasFailure();
       ++round) {
    SCOPED_TRACE(round);
    const auto first = static_cast<int64_t>(random() % 6);
    std::vector<FixedKnot> curve{{first, RandomSlope(random)}};
    for (const CostSegment& segment : RandomSegments(random)) {
      curve.push_back({curve.back().bytes + segment.length,
                       curve.back().ms + segment.slope * static_cast<double>(
                                                             segment.length)});
    }
    const double price = RandomSlope(random);
    std::vector<double> points(curve.back().bytes + 1, kInf);
    for (const FixedKnot& knot : curve) points[knot.bytes] = knot.ms + price;
    points[0] = 0;
    ExpectValues(FromSegments(HullSegments(curve, price)), NaiveHull(points));
  }
}

}  // namespace
}  // namespace acplan::solver
