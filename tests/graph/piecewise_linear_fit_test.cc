#include "graph/profile/piecewise_linear_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <random>
#include <set>

#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using test_support::Repetitions;
using testing::DoubleNear;
using testing::ElementsAre;

using Points = std::vector<std::pair<double, double>>;

// Returns the least squared error of a continuous function with these inner
// breakpoints, by orthogonalising 1, x and max(0, x - b) against each other.
double LeastError(const Points& points, const std::vector<double>& inner) {
  std::vector<std::function<double(double)>> basis = {
      [](double) { return 1.0; }, [](double x) { return x; }};
  for (const double b : inner) {
    basis.emplace_back([b](double x) { return std::max(0.0, x - b); });
  }
  std::vector<double> rest;
  for (const auto& point : points) rest.push_back(point.second);
  std::vector<std::vector<double>> columns;
  const auto dot = [](const auto& a, const auto& b) {
    double sum = 0;
    for (size_t i = 0; i < a.size(); ++i) sum += a[i] * b[i];
    return sum;
  };
  const auto subtract = [&](std::vector<double>& from,
                            const std::vector<double>& what) {
    const double factor = dot(from, what);
    for (size_t i = 0; i < from.size(); ++i) from[i] -= factor * what[i];
  };
  for (const auto& function : basis) {
    std::vector<double> column;
    for (const auto& point : points) column.push_back(function(point.first));
    const double before = std::sqrt(dot(column, column));
    for (int twice = 0; twice < 2; ++twice) {
      for (const auto& other : columns) subtract(column, other);
    }
    const double length = std::sqrt(dot(column, column));
    if (length <= 1e-10 * before) continue;
    for (double& c : column) c /= length;
    columns.push_back(column);
  }
  for (const auto& column : columns) subtract(rest, column);
  return dot(rest, rest);
}

// Returns the best error over a grid of inner breakpoints: all points, and
// `steps` places between neighbours.
double BestOnGrid(const Points& points, int segments, int steps) {
  std::vector<double> grid;
  for (size_t i = 0; i + 1 < points.size(); ++i) {
    for (int s = 0; s < steps; ++s) {
      grid.push_back(points[i].first +
                     (points[i + 1].first - points[i].first) * s / steps);
    }
  }
  double best = LeastError(points, {});
  for (size_t a = 0; segments > 1 && a < grid.size(); ++a) {
    best = std::min(best, LeastError(points, {grid[a]}));
    for (size_t b = a + 1; segments > 2 && b < grid.size(); ++b) {
      best = std::min(best, LeastError(points, {grid[a], grid[b]}));
    }
  }
  return best;
}

void ExpectContinuous(const PiecewiseLinear& f, const Points& points) {
  const size_t n = f.slopes.size();
  ASSERT_GE(n, 1);
  ASSERT_EQ(f.intercepts.size(), n);
  ASSERT_EQ(f.breakpoints.size(), n + 1);
  EXPECT_EQ(f.breakpoints.front(), points.front().first);
  EXPECT_EQ(f.breakpoints.back(), points.back().first);
  for (size_t k = 0; k + 1 < n; ++k) {
    const double x = f.breakpoints[k + 1];
    EXPECT_LT(f.breakpoints[k], x);
    const double scale = 1 + std::abs(f.slopes[k]) + std::abs(f.slopes[k + 1]);
    EXPECT_NEAR(f.slopes[k] * x + f.intercepts[k],
                f.slopes[k + 1] * x + f.intercepts[k + 1], 1e-11 * scale);
  }
}

Points RandomPoints(std::mt19937& random, int n) {
  std::uniform_real_distribution<double> uniform(0, 1);
  std::set<double> xs;
  while (static_cast<int>(xs.size()) < n) xs.insert(uniform(random));
  Points points;
  double y = 0;
  const bool is_monotone = uniform(random) < .5;
  for (const double x : xs) {
    y = is_monotone ? y + std::pow(uniform(random), 3) : uniform(random);
    points.emplace_back(x, y);
  }
  return points;
}

TEST(PiecewiseLinearTest, IsItsSegments) {
  const PiecewiseLinear f{{1, 3}, {0, -2}, {0, 1, 2}};
  EXPECT_EQ(f.At(0), 0);
  EXPECT_EQ(f.At(.5), .5);
  EXPECT_EQ(f.At(1), 1);
  EXPECT_EQ(f.At(1.5), 2.5);
  EXPECT_EQ(f.At(-1), -1);
  EXPECT_EQ(f.At(3), 7);
  EXPECT_EQ(SquaredError(f, {{0, 2}, {2, 1}}), 4 + 9);
  EXPECT_EQ(SquaredError(f, {}), 0);
}

TEST(FitPiecewiseLinearTest, FewPoints) {
  for (const int segments : {1, 2, 3, 16}) {
    const PiecewiseLinear one = FitPiecewiseLinear({{3, 5}}, segments);
    EXPECT_THAT(one.slopes, ElementsAre(0));
    EXPECT_THAT(one.intercepts, ElementsAre(5));
    EXPECT_THAT(one.breakpoints, ElementsAre(3, 3));
    const PiecewiseLinear two = FitPiecewiseLinear({{1, 1}, {3, 5}}, segments);
    EXPECT_THAT(two.slopes, ElementsAre(DoubleNear(2, 1e-14)));
    EXPECT_THAT(two.intercepts, ElementsAre(DoubleNear(-1, 1e-14)));
    EXPECT_THAT(two.breakpoints, ElementsAre(1, 3));
  }
  const Points bent = {{0, 0}, {1, 0}, {2, 6}};
  const PiecewiseLinear line = FitPiecewiseLinear(bent, 1);
  EXPECT_THAT(line.slopes, ElementsAre(DoubleNear(3, 1e-14)));
  EXPECT_NEAR(SquaredError(line, bent), 6, 1e-13);
  for (const int segments : {2, 3, 16}) {
    const PiecewiseLinear f = FitPiecewiseLinear(bent, segments);
    EXPECT_THAT(f.slopes,
                ElementsAre(DoubleNear(0, 1e-14), DoubleNear(6, 1e-14)));
    EXPECT_THAT(f.breakpoints, ElementsAre(0, 1, 2));
  }
}

TEST(FitPiecewiseLinearTest, ConstantData) {
  const PiecewiseLinear f = FitPiecewiseLinear(
      {{0, 7}, {.1, 7}, {.5, 7}, {.6, 7}, {2, 7}, {3, 7}}, 4);
  EXPECT_THAT(f.slopes, ElementsAre(0));
  EXPECT_THAT(f.intercepts, ElementsAre(7));
}

class OptimumTest : public testing::TestWithParam<int> {};

TEST_P(OptimumTest, IsNeverAboveTheBestOfAGrid) {
  const int segments = GetParam();
  std::mt19937 random(17);
  int free_joins = 0;
  for (int round = 0; round < (segments == 3 ? 60 : 400); ++round) {
    const int n = 2 + static_cast<int>(random() % (segments == 3 ? 9 : 12));
    const Points points = RandomPoints(random, n);
    const double best = BestOnGrid(points, segments, segments == 3 ? 5 : 20);
    const PiecewiseLinear f = FitPiecewiseLinear(points, segments);
    ExpectContinuous(f, points);
    EXPECT_LE(f.slopes.size(), static_cast<size_t>(segments));
    const double error = SquaredError(f, points);
    EXPECT_LE(error, best * (1 + 1e-9) + 1e-20) << "round " << round;
    // The stated error is that of the breakpoints.
    std::vector<double> inner(f.breakpoints.begin() + 1,
                              f.breakpoints.end() - 1);
    EXPECT_NEAR(error, LeastError(points, inner), 1e-9 * error + 1e-18);
    for (const double b : inner) {
      free_joins += std::ranges::none_of(
          points, [b](const auto& point) { return point.first == b; });
    }
  }
  // Joins of both kinds are best somewhere.
  EXPECT_EQ(free_joins > 10, segments > 1);
}

INSTANTIATE_TEST_SUITE_P(Segments, OptimumTest, testing::Values(1, 2, 3));

// Clusters, jumps and steps make the best join hard to find.
TEST(FitPiecewiseLinearTest, JumpsAndClusters) {
  Points jump, cluster, steps;
  for (int i = 0; i < 12; ++i) {
    jump.emplace_back(i < 6 ? i * .1 : .5 + 1e-9 + (i - 6) * .1, i < 6 ? 0 : 1);
    cluster.emplace_back(.5 + 1e-8 * i * i, i);
    steps.emplace_back(i, i / 4);
  }
  for (const Points& points : {jump, cluster, steps}) {
    for (const int segments : {1, 2, 3}) {
      const PiecewiseLinear f = FitPiecewiseLinear(points, segments);
      const double error = SquaredError(f, points);
      EXPECT_LE(error, BestOnGrid(points, segments, 3) * (1 + 1e-6) + 1e-11)
          << segments << " segments";
    }
  }
  EXPECT_LT(SquaredError(FitPiecewiseLinear(jump, 3), jump), 1e-12);
}

TEST(FitPiecewiseLinearTest, RecoversWhatIsPiecewiseLinear) {
  std::mt19937 random(5);
  std::uniform_real_distribution<double> uniform(-3, 3);
  for (int round = 0; round < Repetitions(200); ++round) {
    const int segments = 1 + round % 3;
    PiecewiseLinear truth;
    truth.breakpoints = {0};
    double y = uniform(random);
    double slope = uniform(random);
    for (int k = 0; k < segments; ++k) {
      const double x = truth.breakpoints.back();
      truth.slopes.push_back(slope);
      truth.intercepts.push_back(y - slope * x);
      truth.breakpoints.push_back(x + 1.3);
      y += 1.3 * slope;
      slope += uniform(random) > 0 ? 1 : -2;
    }
    Points points;
    for (double x = 0; x < truth.breakpoints.back(); x += .17) {
      points.emplace_back(x, truth.At(x));
    }
    const PiecewiseLinear f = FitPiecewiseLinear(points, segments);
    ASSERT_EQ(f.slopes.size(), static_cast<size_t>(segments));
    for (int k = 0; k < segments; ++k) {
      EXPECT_NEAR(f.slopes[k], truth.slopes[k], 1e-9);
      EXPECT_NEAR(f.intercepts[k], truth.intercepts[k], 1e-9);
    }
    for (int k = 1; k < segments; ++k) {
      EXPECT_NEAR(f.breakpoints[k], truth.breakpoints[k], 1e-9);
    }
  }
}

TEST(FitPiecewiseLinearTest, DoesNotDependOnWhereTheDataLie) {
  std::mt19937 random(9);
  const Points points = RandomPoints(random, 30);
  Points moved_points;
  for (const auto& [x, y] : points) {
    moved_points.emplace_back(1024 * x + 65536, 4096 * y + x);
  }
  for (const int segments : {2, 3, 5}) {
    const double error =
        SquaredError(FitPiecewiseLinear(points, segments), points);
    EXPECT_NEAR(
        SquaredError(FitPiecewiseLinear(moved_points, segments), moved_points),
        error * 4096 * 4096, 1e-5 * error * 4096 * 4096);
  }
}

TEST(FitPiecewiseLinearTest, MoreSegmentsAreNeverWorse) {
  std::mt19937 random(11);
  for (int round = 0; round < 40; ++round) {
    const int n = 2 + static_cast<int>(random() % 40);
    const Points points = RandomPoints(random, n);
    double last = std::numeric_limits<double>::infinity();
    for (int segments = 1; segments <= 16; ++segments) {
      const PiecewiseLinear f = FitPiecewiseLinear(points, segments);
      ExpectContinuous(f, points);
      EXPECT_LE(f.slopes.size(), static_cast<size_t>(segments));
      const double error = SquaredError(f, points);
      EXPECT_LE(error, last * (1 + 1e-9) + 1e-16);
      last = error;
    }
  }
}

TEST(FitPiecewiseLinearTest, FourSegmentsAreALocalOptimum) {
  std::mt19937 random(13);
  for (int round = 0; round < 20; ++round) {
    const Points points = RandomPoints(random, 25);
    const PiecewiseLinear f = FitPiecewiseLinear(points, 4);
    ASSERT_EQ(f.slopes.size(), 4);
    const double error = SquaredError(f, points);
    for (size_t moved_count = 1; moved_count <= 3; ++moved_count) {
      for (double x = points.front().first; x < points.back().first;
           x += 1e-3) {
        std::vector<double> inner(f.breakpoints.begin() + 1,
                                  f.breakpoints.end() - 1);
        inner[moved_count - 1] = x;
        std::ranges::sort(inner);
        EXPECT_GE(LeastError(points, inner), error * (1 - 1e-9));
      }
    }
  }
}

TEST(FitPiecewiseLinearTest, IsTheSameEveryTime) {
  std::mt19937 random(3);
  for (const int segments : {2, 3, 6}) {
    const Points points = RandomPoints(random, 60);
    const PiecewiseLinear first = FitPiecewiseLinear(points, segments);
    const PiecewiseLinear second = FitPiecewiseLinear(points, segments);
    EXPECT_EQ(first.slopes, second.slopes);
    EXPECT_EQ(first.intercepts, second.intercepts);
    EXPECT_EQ(first.breakpoints, second.breakpoints);
  }
}

}  // namespace
}  // namespace acplan::graph
