#include "costmodel/training/confidence/intervals.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "costmodel/training/confidence/error_table.h"
#include "costmodel/training/search/strategy_search.h"
#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/training/training_example.h"

namespace acplan::costmodel {
namespace {

using ::testing::HasSubstr;

std::vector<RunError> BundledErrors() {
  const std::string path = ACPLAN_DATA_DIR "/training/errors.csv";
  return ReadRunErrors(
      graph::ParseCsv(graph::ReadFile(path, graph::kMostListBytes), path));
}

const IntervalModel& BundledIntervals() {
  static const IntervalModel kModel(BundledErrors());
  return kModel;
}

// The intervals of 80% hold in 75 to 85% of the runs whose source had no part in
// them; this is the claim of the documentation.
TEST(Intervals, ContainAboutTheirShareOfRunsOfOtherSources) {
  const std::vector<Coverage> coverages =
      CrossValidateIntervals(BundledErrors());
  ASSERT_FALSE(coverages.empty());
  EXPECT_EQ(coverages[0].name, "all");
  EXPECT_GT(coverages[0].runs, 300U);
  EXPECT_GE(coverages[0].Share(), .75);
  EXPECT_LE(coverages[0].Share(), .85);
  const auto generations = std::ranges::find(
      coverages, "its generation of GPUs left out", &Coverage::name);
  ASSERT_NE(generations, coverages.end());
  EXPECT_GE(generations->Share(), .75);
  EXPECT_LE(generations->Share(), .85);
}

// Returns errors of sources of 20 runs each, with experts in every second one,
// whose errors are three times as large.
std::vector<RunError> SyntheticErrors() {
  std::mt19937 random(7);
  std::normal_distribution<double> normal(0, .05);
  std::vector<RunError> errors;
  for (int i = 0; i < 600; ++i) {
    const bool has_experts = i % 2 == 1;
    TrainingJob job = Llama8B();
    if (has_experts) job.shape.experts = 8;
    const std::string number = std::to_string(i);
    errors.push_back(
        {.id = "run-" + number,
         .source = "source-" + std::to_string(i / 20),
         .group = number,
         .left_out = LeftOut::kSource,
         .kind = KindOfJob(job),
         .ratio = std::exp((has_experts ? 3 : 1) * normal(random))});
  }
  return errors;
}

TEST(Intervals, AreThoseOfKnownErrors) {
  const IntervalModel model(SyntheticErrors());
  TrainingJob job = Llama8B();
  const Interval dense = model.At(KindOfJob(job)).interval;
  job.shape.experts = 8;
  const Interval experts = model.At(KindOfJob(job)).interval;
  // In a normal distribution, 80% are within 1.2816 standard deviations.
  EXPECT_NEAR(std::log(dense.high), 1.2816 * .05, .015);
  EXPECT_NEAR(std::log(dense.low), -1.2816 * .05, .015);
  EXPECT_NEAR(std::log(experts.high), 1.2816 * .15, .04);
  EXPECT_NEAR(std::log(experts.low), -1.2816 * .15, .04);
  const std::vector<Coverage> coverages =
      CrossValidateIntervals(SyntheticErrors());
  EXPECT_NEAR(coverages[0].Share(), .8, .03);
}

TEST(Intervals, WidenWithTheDistanceFromMeasuredRuns) {
  const IntervalModel& model = BundledIntervals();
  const RunKind kind = KindOfJob(Llama8B());
  double width = 0;
  for (const double distance : {0.0, .5, 1.0, 2.0, kMostDistance}) {
    const Interval interval = model.At(kind, distance);
    EXPECT_LE(interval.low, 1);
    EXPECT_GE(interval.high, 1);
    EXPECT_GE(interval.high / interval.low, width);
    width = interval.high / interval.low;
  }
  RunKind unknown = kind;
  unknown.gpu = "X1";
  EXPECT_GT(model.At(unknown, 1).high, model.At(kind, 1).high);
  EXPECT_FALSE(model.At(unknown).has_generation);
  // Another GPU of a measured generation.
  unknown.gpu = "H20";
  EXPECT_TRUE(model.At(unknown).has_generation);
}

TEST(Intervals, AMeasuredRunIsWithinMeasuredTerritory) {
  const IntervalModel& model = BundledIntervals();
  const Confidence confidence = model.At(model.runs()[0].kind);
  EXPECT_EQ(confidence.distance, 0);
  EXPECT_TRUE(confidence.IsMeasured());
  EXPECT_FALSE(confidence.nearest.empty());
  RunKind far = model.runs()[0].kind;
  for (double& size : far.sizes) size += 10;
  EXPECT_FALSE(model.At(far).IsMeasured());
  EXPECT_EQ(model.At(far).nearest, "");
}

TEST(Intervals, DistancesCountFactors) {
  const RunKind kind = KindOfJob(Llama8B());
  EXPECT_EQ(DistanceOfKinds(kind, kind), 0);
  TrainingJob job = Llama8B();
  job.strategy.tensor = 4;
  EXPECT_DOUBLE_EQ(DistanceOfKinds(kind, KindOfJob(job)), 1);
  job.strategy.pipeline = 4;
  EXPECT_DOUBLE_EQ(DistanceOfKinds(kind, KindOfJob(job)), std::sqrt(2));
  EXPECT_EQ(GenerationOf("GB200"), GenerationOf("B300"));
  EXPECT_EQ(GenerationOf("H20"), GenerationOf("H100"));
  EXPECT_NE(GenerationOf("MI300X"), GenerationOf("A100"));
}

TEST(Intervals, AFileOfErrorsIsReadAsItIsWritten) {
  const std::vector<RunError> errors = BundledErrors();
  const std::string text = RunErrorsCsv(errors);
  const std::vector<RunError> second_errors =
      ReadRunErrors(graph::ParseCsv(text, "second.csv"));
  ASSERT_EQ(second_errors.size(), errors.size());
  EXPECT_EQ(RunErrorsCsv(second_errors), text);
}

TEST(Intervals, AWrongCellIsNamed) {
  std::string text = RunErrorsCsv(std::vector<RunError>(
      {{.id = "a", .source = "s", .group = "g", .ratio = 1}}));
  const auto complaint = [](const std::string& wrong) -> std::string {
    try {
      ReadRunErrors(graph::ParseCsv(wrong, "e.csv"));
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  };
  // Neither a GPU nor software has a name.
  EXPECT_THAT(complaint(text), HasSubstr("gpu: expected a name"));
  text.replace(text.find("nothing"), 7, "some");
  EXPECT_THAT(complaint(text),
              HasSubstr("left_out: expected one of nothing, group, source"));
}

// A search finds what the functions of commands say about each strategy.
TEST(Intervals, ASearchFindsTheFastestMeasuredAndTheBestWorstCase) {
  const IntervalModel& model = BundledIntervals();
  TrainingJob job = Llama8B();
  job.strategy.gpus = 16;
  job.strategy.global_batch = 128;
  StrategySpace space = WholeSpace(job);
  std::erase(space.recomputation, Recomputation::kPlan);
  const MemoryLimit limit = {40.0 * 1024 * 1024 * 1024};
  const StrategySearch all =
      SearchStrategies(job, space, limit, {.count = 100000});
  ASSERT_GT(all.best.size(), 100U);
  const RankedStrategy* measured = nullptr;
  double least = std::numeric_limits<double>::infinity();
  for (const RankedStrategy& ranked : all.best) {
    const Confidence confidence = model.At(KindOfRanked(job, ranked));
    if (measured == nullptr && confidence.IsMeasured()) measured = &ranked;
    least = std::min(least, ranked.seconds * confidence.interval.high);
  }
  ASSERT_NE(measured, nullptr);
  const StrategySearch known_search =
      SearchStrategies(job, space, limit, {.count = 1, .intervals = &model});
  ASSERT_TRUE(known_search.measured.has_value());
  EXPECT_DOUBLE_EQ(known_search.measured->seconds, measured->seconds);
  EXPECT_DOUBLE_EQ(known_search.best[0].seconds, all.best[0].seconds);
  const StrategySearch robust = SearchStrategies(
      job, space, limit, {.count = 1, .intervals = &model, .is_robust = true});
  EXPECT_DOUBLE_EQ(robust.best[0].rank, least);
}

}  // namespace
}  // namespace acplan::costmodel
