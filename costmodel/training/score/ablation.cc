#include "costmodel/training/score/ablation.h"

#include <cmath>

namespace acplan::costmodel {

namespace {

TrainingJob WithoutHost(TrainingJob job) {
  job.cluster.stack.host_seconds = 0;
  return job;
}

TrainingJob WithoutIteration(TrainingJob job) {
  job.cluster.stack.iteration_seconds = 0;
  return job;
}

TrainingJob WithoutLatency(TrainingJob job) {
  job.cluster.stack.network_latency = 0;
  job.cluster.kernels.nvlink_latency = 0;
  return job;
}

TrainingJob WithoutElementwise(TrainingJob job) {
  job.cluster.stack.elementwise = 1;
  return job;
}

TrainingJob WithoutImperfectOverlap(TrainingJob job) {
  job.cluster.stack.hidden_share = 1;
  job.cluster.constants.interference = 0;
  return job;
}

TrainingJob WithoutAttentionFactor(TrainingJob job) {
  job.cluster.stack.attention_factor = 1;
  return job;
}

TrainingJob WithoutProductFactor(TrainingJob job) {
  job.cluster.stack.product_factor = 1;
  return job;
}

TrainingJob WithoutExpertLaunches(TrainingJob job) {
  job.strategy.fuses_experts = true;
  return job;
}

TrainingJob WithoutGraphs(TrainingJob job) {
  job.strategy.graphs = CudaGraphs::kNone;
  return job;
}

TrainingJob WithoutWaves(TrainingJob job) {
  job.cluster.kernels.tile_overhead = 0;
  job.cluster.kernels.idle_share = 0;
  return job;
}

TrainingJob WithoutOverlapInLayers(TrainingJob job) {
  job.strategy.overlaps_tensor = false;
  job.strategy.overlaps_expert = false;
  return job;
}

TrainingJob WithoutTokensOnce(TrainingJob job) {
  job.strategy.dedupes_tokens = false;
  return job;
}

TrainingJob WithoutSlowKernels(TrainingJob job) {
  job.cluster.constants.rowwise_share = 1;
  job.cluster.kernels.small_head_share = 1;
  return job;
}

TrainingJob WithoutSlowBackward(TrainingJob job) {
  job.cluster.constants.backward_attention_share = 1;
  return job;
}

TrainingJob WithoutClampedActivation(TrainingJob job) {
  job.shape.is_clamped = false;
  return job;
}

TrainingJob WithoutBalance(TrainingJob job) {
  job.strategy.balances_ends = false;
  return job;
}

TrainingJob WithoutRecomputation(TrainingJob job) {
  job.strategy.recomputation = Recomputation::kNone;
  return job;
}

TrainingJob WithoutOffloadTime(TrainingJob job) {
  job.cluster.constants.host_link_share = 1e6;
  return job;
}

TrainingJob WithoutNewAttention(TrainingJob job) {
  if (job.strategy.attention == AttentionKernel::kFlashNew) {
    job.strategy.attention = AttentionKernel::kFlash;
  }
  return job;
}

double ErrorOf(const Prediction& prediction) {
  return std::abs(prediction.seconds / prediction.measured_seconds - 1);
}

AblatedScore Compare(const std::vector<Prediction>& whole,
                     const std::vector<Prediction>& ablated) {
  AblatedScore score{.score = ScorePredictions(ablated)};
  for (size_t i = 0; i < whole.size(); ++i) {
    if (whole[i].seconds == 0 || ablated[i].seconds == 0) continue;
    if (std::abs(ablated[i].seconds / whole[i].seconds - 1) <= .001) continue;
    ++score.changed_runs;
    score.error_with += ErrorOf(whole[i]);
    score.error_without += ErrorOf(ablated[i]);
  }
  if (score.changed_runs == 0) return score;
  score.error_with /= static_cast<double>(score.changed_runs);
  score.error_without /= static_cast<double>(score.changed_runs);
  return score;
}

}  // namespace

const std::vector<ModelFeature>& ModelFeatures() {
  static const std::vector<ModelFeature> kFeatures = {
      {"host time of launches", WithoutHost},
      {"launches for each expert", WithoutExpertLaunches},
      {"CUDA graphs", WithoutGraphs},
      {"fixed time per iteration", WithoutIteration},
      {"waves and efficiency of tiles", WithoutWaves},
      {"products by software", WithoutProductFactor},
      {"attention by software", WithoutAttentionFactor},
      {"attention kernels of Hopper", WithoutNewAttention},
      {"slower backward of attention", WithoutSlowBackward},
      {"row-wise products, small heads", WithoutSlowKernels},
      {"elementwise traffic by software", WithoutElementwise},
      {"unfused clamped activation", WithoutClampedActivation},
      {"latency of networks", WithoutLatency},
      {"imperfect overlap of data parallelism", WithoutImperfectOverlap},
      {"overlap inside of layers", WithoutOverlapInLayers},
      {"tokens sent once to a node", WithoutTokensOnce},
      {"stages balanced by matrices", WithoutBalance},
      {"recomputation", WithoutRecomputation},
      {"time of offloading", WithoutOffloadTime}};
  return kFeatures;
}

std::vector<AblatedScore> AblateFeatures(const std::vector<TrainingRun>& runs) {
  const std::vector<Prediction> whole = PredictRuns(runs);
  std::vector<AblatedScore> scores;
  for (const ModelFeature& feature : ModelFeatures()) {
    std::vector<TrainingRun> ablated_runs = runs;
    for (TrainingRun& run : ablated_runs) {
      if (run.job) run.job = feature.without(*run.job);
    }
    AblatedScore score = Compare(whole, PredictRuns(ablated_runs));
    score.feature = feature.name;
    scores.push_back(std::move(score));
  }
  return scores;
}

}  // namespace acplan::costmodel
