#include "costmodel/training/score/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "costmodel/training/score/stack_factors.h"
#include "graph/base/csv_table.h"
#include "graph/base/file_io.h"

namespace acplan::costmodel {
namespace {

std::vector<TrainingRun> PublishedRuns() {
  const TrainingSystems systems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  const std::string path = ACPLAN_DATA_DIR "/training/runs.csv";
  return ReadRuns(graph::ParseCsv(graph::ReadFile(path), path), systems);
}

// Returns the published runs, and some with features that none of them has.
std::vector<TrainingRun> RunsOfAllKinds() {
  std::vector<TrainingRun> runs = PublishedRuns();
  TrainingRun moe = runs.front();
  for (const TrainingRun& run : runs) {
    if (run.job->shape.IsMoe()) moe = run;
  }
  const auto add = [&](TrainingRun run, auto change) {
    run.id = "made " + std::to_string(runs.size());
    change(*run.job);
    runs.push_back(std::move(run));
  };
  add(moe, [](TrainingJob& job) {
    job.strategy.graphs = CudaGraphs::kFull;
    job.cluster.stack.host_seconds = 1e-3;
  });
  add(moe, [](TrainingJob& job) { job.shape.is_clamped = true; });
  add(moe, [](TrainingJob& job) {
    job.strategy.dedupes_tokens = true;
    job.cluster.domain = 2;
  });
  add(moe, [](TrainingJob& job) { job.cluster.stack.host_seconds = 1e-3; });
  TrainingRun dense = runs.front();
  for (const TrainingRun& run : runs) {
    const bool is_fused =
        run.job->strategy.attention == AttentionKernel::kFlashNew;
    if (is_fused && !run.job->shape.IsMoe()) dense = run;
  }
  add(dense, [](TrainingJob& job) { job.shape.head_dim = 64; });
  add(dense, [](TrainingJob& job) {
    job.strategy.offloaded_layers = 8;
    job.cluster.gpu.host_rate = 1e9;
  });
  add(dense, [](TrainingJob& job) {
    job.strategy.tensor = 2;
    job.strategy.overlaps_tensor = true;
  });
  add(dense, [](TrainingJob& job) {
    job.strategy.pipeline = 2;
    job.strategy.balances_ends = true;
    job.shape.vocabulary = 1 << 20;
  });
  add(dense, [](TrainingJob& job) {
    job.strategy.zero = 3;
    job.strategy.fsdp = job.strategy.Data();
    job.cluster.stack.hidden_share = .2;
  });
  return runs;
}

// A part without any effect would be no part.
TEST(Ablation, EachPartMovesARunAndLeavesTheOthers) {
  const std::vector<TrainingRun> runs = RunsOfAllKinds();
  const std::vector<AblatedScore> scores = AblateFeatures(runs);
  ASSERT_EQ(scores.size(), ModelFeatures().size());
  size_t some = 0;
  for (const AblatedScore& score : scores) {
    EXPECT_GT(score.changed_runs, 0U) << score.feature;
    EXPECT_EQ(score.score.all.rows, runs.size()) << score.feature;
    some += score.changed_runs < runs.size() ? 1 : 0;
  }
  EXPECT_GT(some, scores.size() / 2);
}

TrainingRun RunOf(std::string id, std::string group, double seconds) {
  TrainingRun run{.id = std::move(id), .source = "s", .seconds = seconds};
  run.group = std::move(group);
  run.stack = "k";
  return run;
}

// Worked out by hand: groups a and c are one half, b the other.
TEST(StackFactors, AreThoseOfTheOtherHalf) {
  const std::vector<TrainingRun> runs = {
      RunOf("1", "a", 10), RunOf("2", "b", 10), RunOf("3", "a", 10),
      RunOf("4", "c", 10)};
  std::vector<Prediction> predictions;
  for (const double seconds : {5.0, 8.0, 4.0, 2.0}) {
    predictions.push_back({.id = runs[predictions.size()].id,
                           .source = "s",
                           .seconds = seconds,
                           .measured_seconds = 10});
  }
  const std::vector<Prediction> scaled = ApplyStackFactors(runs, predictions);
  EXPECT_DOUBLE_EQ(scaled[0].seconds, 5 * 1.25);
  EXPECT_DOUBLE_EQ(scaled[2].seconds, 4 * 1.25);
  EXPECT_DOUBLE_EQ(scaled[3].seconds, 2 * 1.25);
  EXPECT_DOUBLE_EQ(scaled[1].seconds, 8 * 2.5);  // median of 2, 2.5, 5
}

TEST(StackFactors, AStackOfOneGroupHasNone) {
  const std::vector<Prediction> scaled = ApplyStackFactors(
      {RunOf("1", "a", 10), RunOf("2", "a", 10)},
      {{.id = "1", .source = "s", .seconds = 5, .measured_seconds = 10},
       {.id = "2", .source = "s", .seconds = 5, .measured_seconds = 10}});
  EXPECT_EQ(scaled[0].seconds, 0);
  EXPECT_NE(scaled[0].reason, "");
}

// A predictor that is wrong by the same factor everywhere is right with
// factors.
TEST(StackFactors, TakeAwayWhatAStackHasInCommon) {
  std::vector<TrainingRun> runs = PublishedRuns();
  std::vector<Prediction> predictions;
  for (const TrainingRun& run : runs) {
    predictions.push_back({.id = run.id,
                           .source = run.source,
                           .seconds = run.seconds * 1.7,
                           .measured_seconds = run.seconds});
  }
  const Score score = ScorePredictions(ApplyStackFactors(runs, predictions));
  ASSERT_FALSE(score.sources.empty());
  EXPECT_LT(score.mean_of_sources, 1e-12);
}

}  // namespace
}  // namespace acplan::costmodel
