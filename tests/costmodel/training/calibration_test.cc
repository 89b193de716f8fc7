#include "costmodel/training/score/calibration.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

// Returns a run of Llama 3 8B with a tensor parallelism that takes its predicted
// time with these factors.
TrainingRun RunWith(int64_t tensor, int64_t microbatch,
                    const Calibration& truth) {
  TrainingJob job = Llama8B();
  job.strategy.tensor = tensor;
  job.strategy.sequence_parallel = tensor > 1;
  job.strategy.microbatch = microbatch;
  TrainingJob slower = job;
  slower.cluster.gpu = WithCalibration(job.cluster.gpu, truth);
  slower.cluster.stack = WithCalibration(job.cluster.stack, truth);
  TrainingRun run{
      .id = "x", .source = "s", .seconds = PredictStepTime(slower).Total()};
  run.job = job;
  return run;
}

TEST(Calibration, OneRunCountsHalf) {
  const std::vector<TrainingRun> runs = {
      RunWith(1, 1, {.computation = 1.4, .communication = 1.4, .host = 1.4})};
  const Calibration calibration = Calibrate(runs);
  EXPECT_TRUE(calibration.IsOneFactor());
  EXPECT_NEAR(calibration.computation, std::sqrt(1.4), .02);
  EXPECT_NEAR(calibration.error_before, 1 - 1 / 1.4, .02);
  EXPECT_LT(calibration.error_after, .2);
}

// Where only communication is slow, its own factor predicts the runs left out
// better than one factor.
TEST(Calibration, PartsCountIfTheyPredictBetter) {
  const Calibration truth = {.communication = 3};
  std::vector<TrainingRun> runs;
  for (const int64_t tensor : {1, 2, 4, 8}) {
    runs.push_back(RunWith(tensor, 1, truth));
  }
  const Calibration calibration = Calibrate(runs);
  EXPECT_FALSE(calibration.IsOneFactor());
  EXPECT_GT(calibration.communication, 1.5 * calibration.computation);
  EXPECT_LT(calibration.error_after, .8 * calibration.error_before);
}

TEST(Calibration, RunsThatDisagreeChangeNothing) {
  std::vector<TrainingRun> runs = {RunWith(1, 1, {}), RunWith(1, 1, {}),
                                   RunWith(1, 1, {})};
  runs[1].seconds *= 1.5;
  runs[2].seconds /= 1.5;
  const Calibration calibration = Calibrate(runs);
  EXPECT_DOUBLE_EQ(calibration.computation, 1);
  EXPECT_DOUBLE_EQ(calibration.communication, 1);
  EXPECT_DOUBLE_EQ(calibration.host, 1);
}

TEST(Calibration, OneFactorMultipliesTheWholeTime) {
  const TrainingRun run = RunWith(2, 1, {});
  const Calibration twice = {.computation = 2, .communication = 2, .host = 2};
  EXPECT_NEAR(RunWith(2, 1, twice).seconds / run.seconds, 2, .02);
}

TEST(Calibration, ReducesErrorsOfPublishedRuns) {
  const TrainingSystems systems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  const std::string path = ACPLAN_DATA_DIR "/training/runs.csv";
  const graph::CsvTable table =
      graph::ParseCsv(graph::ReadFile(path, graph::kMostListBytes), path);
  const std::vector<CalibrationScore> scores =
      ScoreCalibrations(ReadRuns(table, systems));
  ASSERT_EQ(scores.size(), 5U);
  for (const CalibrationScore& score : scores) {
    EXPECT_GT(score.predictions, 20U);
    EXPECT_LT(score.after, 1.3 * score.before);
  }
  EXPECT_THROW(
      CalibrateToTable(graph::ParseCsv("id,source,time_s\nx,s,1\n", "r.csv"),
                       systems),
      InputError);
}

}  // namespace
}  // namespace acplan::costmodel
