#include "costmodel/training/score/ablation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

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

}  // namespace
}  // namespace acplan::costmodel
