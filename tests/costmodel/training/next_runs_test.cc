#include "costmodel/training/confidence/next_runs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numbers>
#include <random>
#include <string>
#include <vector>

namespace acplan::costmodel {
namespace {

// A strategy whose tensor parallelism has this logarithm; two of them add 1 to
// the distance.
PredictedRun At(double seconds, double tensor) {
  PredictedRun run{.seconds = seconds, .width = .5};
  run.kind.sizes[static_cast<size_t>(RunSize::kTensor)] = tensor;
  return run;
}

double NormalShare(double x) { return std::erfc(-x / std::numbers::sqrt2) / 2; }

// E max(0, e^D - 1) of a normal D, as Black and Scholes have it.
TEST(NextRuns, RegretOfTwoIsThatOfTheFormula) {
  const std::vector<PredictedRun> two = {At(1, 0), At(1.1, 4)};
  const ChoiceErrors errors{.noise = .1, .slope = .2};
  const double variance = 2 * .05 * .05 + .1 * .1 * 4;
  const double sigma = std::sqrt(variance);
  const double mean = -std::log(1.1);
  const double expected =
      std::exp(mean + variance / 2) * NormalShare((mean + variance) / sigma) -
      NormalShare(mean / sigma);
  const std::vector<NextRuns> choices = ChooseNextRuns(two, errors);
  ASSERT_EQ(choices.size(), 2U);
  EXPECT_TRUE(choices[0].runs.empty());
  EXPECT_NEAR(choices[0].regret / expected, 1, .03);
  EXPECT_THAT(choices[1].runs, testing::ElementsAre(0, 1));
  EXPECT_EQ(choices[1].regret, 0);
}

// Ten strategies of the same time whose errors are independent. Without a measurement any of
// them is chosen; otherwise the best of those measured. The losses are differences of the means
// of the greatest of 1, 2, 3 and 10 normal numbers (0, .5642, .8463, 1.5388 deviations).
TEST(NextRuns, NearTiesLoseWhatOrderStatisticsSay) {
  constexpr double kDeviation = .001;  // so small that logarithms are losses
  PredictedRun tie = At(1, 0);
  tie.width = .05;
  const std::vector<PredictedRun> ties(10, tie);
  const std::vector<NextRuns> choices =
      ChooseNextRuns(ties, {.noise = kDeviation / .05});
  ASSERT_EQ(choices.size(), 3U);
  EXPECT_NEAR(choices[0].regret / kDeviation, 1.5388, .03);
  EXPECT_NEAR(choices[1].regret / kDeviation, 1.5388 - .5642, .03);
  EXPECT_NEAR(choices[2].regret / kDeviation, 1.5388 - .8463, .03);
}

// A twin of the first says little; the far one may well be faster.
TEST(NextRuns, AreNotTwoOfTheSame) {
  const std::vector<PredictedRun> runs = {At(1, 0), At(1.001, 0), At(1.01, 5),
                                          At(1.5, 0)};
  const std::vector<NextRuns> choices =
      ChooseNextRuns(runs, {.noise = .02, .slope = .2});
  ASSERT_EQ(choices.size(), 3U);
  EXPECT_THAT(choices[1].runs, testing::Contains(2));
  EXPECT_THAT(choices[2].runs, testing::ElementsAre(0, 1, 2));
  EXPECT_LT(choices[1].regret, choices[0].regret / 2);
  EXPECT_LT(choices[2].regret, choices[1].regret);
}

TEST(NextRuns, OneOrNoneAreNoChoice) {
  EXPECT_TRUE(ChooseNextRuns({}, {}).empty());
  const std::vector<PredictedRun> one = {At(1, 0)};
  const std::vector<NextRuns> choices = ChooseNextRuns(one, {.noise = .1});
  ASSERT_EQ(choices.size(), 1U);
  EXPECT_EQ(choices[0].regret, 0);
}

// Both that are measured are slower than predicted, the farther one more: one
// beyond it is expected to be slower still, one at the first as slow as that.
TEST(NextRuns, MeasuredErrorsMoveWhatIsNear) {
  const std::vector<PredictedRun> runs = {At(1, 0), At(1, 4), At(.95, 8),
                                          At(1.01, 0)};
  const ChoiceErrors errors{.noise = .02, .slope = .4};
  EXPECT_EQ(FastestAfter(runs, errors, {}, {}), 2U);
  const std::vector<size_t> measured = {0, 1};
  EXPECT_EQ(FastestAfter(runs, errors, measured, std::vector{1.3, 1.6}), 0U);
  EXPECT_EQ(FastestAfter(runs, errors, measured, std::vector{1.3, 1.2}), 2U);
  const std::vector<size_t> three = {0, 1, 2};
  EXPECT_EQ(FastestAfter(runs, errors, three, std::vector{1.3, 1.2, 1.29}), 1U);
}

// Errors that are drawn with a noise and a slope have these again.
TEST(ChoiceErrors, AreThoseOfTheirField) {
  std::mt19937 random(3);
  std::normal_distribution<double> normal;
  std::vector<RunError> errors;
  for (int source = 0; source < 60; ++source) {
    const double common = normal(random);
    const double steepness = .1 * normal(random);
    for (int run = 0; run < 6; ++run) {
      RunError error{.id = std::to_string(run),
                     .source = std::to_string(source),
                     .left_out = LeftOut::kSource};
      error.kind = At(1, 2 * run).kind;
      error.ratio = std::exp(common + steepness * run + .04 * normal(random));
      errors.push_back(std::move(error));
    }
  }
  const std::vector<double> widths(errors.size(), 2);
  const ChoiceErrors fitted = FitChoiceErrors(errors, widths);
  EXPECT_NEAR(fitted.noise, .02, .005);
  EXPECT_NEAR(fitted.slope, .05, .0125);
  EXPECT_EQ(FitChoiceErrors({}, {}).noise, 0);
  errors.resize(1);
  EXPECT_EQ(FitChoiceErrors(errors, widths).slope, 0);
}

}  // namespace
}  // namespace acplan::costmodel
