#include "solver/price_planes.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <random>

#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Repetitions;

constexpr double kNear = 1e-7;

double LowestPlane(const std::vector<PricePlane>& planes,
                   const std::vector<double>& prices) {
  double lowest = std::numeric_limits<double>::infinity();
  for (const PricePlane& plane : planes) {
    double height = plane.cost;
    for (size_t row = 0; row < prices.size(); ++row) {
      height += prices[row] * plane.excess[row];
    }
    lowest = std::min(lowest, height);
  }
  return lowest;
}

// 2 p rises and 10 - 3 p falls: they meet at 2.
TEST(PricePlanes, AreHighestWhereTheyMeet) {
  const auto highest = FindHighestPoint(
      {{.cost = 0, .excess = {2}}, {.cost = 10, .excess = {-3}}}, 1);
  ASSERT_TRUE(highest);
  EXPECT_NEAR(highest->height, 4, kNear);
  EXPECT_NEAR(highest->prices[0], 2, kNear);
  EXPECT_NEAR(highest->shares[0], 0.6, kNear);
  EXPECT_NEAR(highest->shares[1], 0.4, kNear);
  EXPECT_EQ(highest->missing, 0);
}

TEST(PricePlanes, CostNothingWhereTheCheapestChoiceKeepsAllRows) {
  const auto highest = FindHighestPoint(
      {{.cost = 5, .excess = {-1, -2}}, {.cost = 6, .excess = {-9, -9}}}, 2);
  ASSERT_TRUE(highest);
  EXPECT_NEAR(highest->height, 5, kNear);
  EXPECT_EQ(highest->prices, (std::vector<double>{0, 0}));
  EXPECT_NEAR(highest->shares[0], 1, kNear);
}

TEST(PricePlanes, HaveNoHighestPointWhereNoMixtureKeepsARow) {
  EXPECT_FALSE(FindHighestPoint({{.cost = 5, .excess = {1}}}, 1));
}

TEST(PricePlanes, PayForRoomThatIsMissing) {
  const auto highest = FindHighestPoint({{.cost = 5, .excess = {3}}}, 1, 7);
  ASSERT_TRUE(highest);
  EXPECT_NEAR(highest->height, 26, kNear);
  EXPECT_NEAR(highest->prices[0], 7, kNear);
  EXPECT_NEAR(highest->missing, 3, kNear);
}

// Prices and mixture prove each other best: the lowest plane at the prices
// costs as much as the mixture, which keeps all rows except for what is
// missing.
TEST(PricePlanes, AreAsHighAsTheirMixtureCosts) {
  std::mt19937 random(1);
  const auto draw = [&](double least, double most) {
    return std::uniform_real_distribution<double>(least, most)(random);
  };
  const double price_of_missing = 100;
  for (int i = 0; i < Repetitions(300); ++i) {
    const size_t rows = 1 + random() % 4;
    std::vector<PricePlane> planes(1 + random() % 8);
    for (PricePlane& plane : planes) {
      plane.cost = draw(0, 10);
      for (size_t row = 0; row < rows; ++row) {
        plane.excess.push_back(draw(-2, 1));
      }
    }
    const auto highest = FindHighestPoint(planes, rows, price_of_missing);
    ASSERT_TRUE(highest);
    EXPECT_NEAR(LowestPlane(planes, highest->prices), highest->height, kNear);
    double cost = price_of_missing * highest->missing;
    double sum = 0;
    std::vector<double> excess(rows, -highest->missing);
    for (size_t c = 0; c < planes.size(); ++c) {
      EXPECT_GE(highest->shares[c], -kNear);
      sum += highest->shares[c];
      cost += highest->shares[c] * planes[c].cost;
      for (size_t row = 0; row < rows; ++row) {
        excess[row] += highest->shares[c] * planes[c].excess[row];
      }
    }
    EXPECT_NEAR(sum, 1, kNear);
    EXPECT_NEAR(cost, highest->height, kNear);
    EXPECT_LE(*std::ranges::max_element(excess), kNear);
    EXPECT_GE(*std::ranges::min_element(highest->prices), 0);
  }
}

}  // namespace
}  // namespace acplan::solver
