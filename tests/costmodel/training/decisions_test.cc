#include "costmodel/training/score/decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace acplan::costmodel {
namespace {

TrainingRun Measured(std::string question, double seconds) {
  TrainingRun run{.id = "x", .source = "s", .seconds = seconds};
  run.question = std::move(question);
  return run;
}

// Worked out by hand. The choice of group a is its second best strategy, 10%
// slower than the best; that of b is the best one; c has two strategies.
TEST(Decisions, AreThoseOfGroupsOfThree) {
  const std::vector<TrainingRun> runs = {Measured("a", 10), Measured("a", 11),
                                         Measured("a", 20), Measured("b", 5),
                                         Measured("b", 6),  Measured("b", 7),
                                         Measured("c", 1),  Measured("c", 2)};
  std::vector<Prediction> predictions;
  for (const double seconds : {9.0, 8.0, 30.0, 1.0, 2.0, 3.0, 1.0, 2.0}) {
    predictions.push_back({.seconds = seconds});
  }
  const IntervalModel intervals({RunError{.id = "x", .ratio = 1.1}});
  const DecisionScore score = ScoreDecisions(runs, predictions, &intervals);
  EXPECT_EQ(score.groups, 2U);
  EXPECT_EQ(score.runs, 6U);
  EXPECT_NEAR(score.regret, (.1 + 0) / 2, 1e-12);
  EXPECT_NEAR(score.regret_of_three, 0, 1e-12);
  EXPECT_NEAR(score.good_share, .5, 1e-12);
  EXPECT_NEAR(score.chance_regret, (1.1 / 3 + .6 / 3) / 2, 1e-12);
  EXPECT_NEAR(score.chance_good_share, 1.0 / 3, 1e-12);
  EXPECT_NEAR(score.kendall_tau, (1.0 / 3 + 1) / 2, 1e-12);
  // The two fastest are measured.
  EXPECT_EQ(score.measuring[0].regret, score.regret);
  EXPECT_NEAR(score.measuring[1].regret, 0, 1e-12);
  EXPECT_EQ(score.measuring[2].expected_regret, 0);
}

TEST(Decisions, RunsWithoutPredictionDoNotCount) {
  const std::vector<TrainingRun> runs = {Measured("a", 10), Measured("a", 11),
                                         Measured("a", 12)};
  std::vector<Prediction> predictions(3);
  EXPECT_EQ(ScoreDecisions(runs, predictions).groups, 0U);
  predictions[0].seconds = predictions[1].seconds = 1;
  EXPECT_EQ(ScoreDecisions(runs, predictions).groups, 0U);
}

}  // namespace
}  // namespace acplan::costmodel
