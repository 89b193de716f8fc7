#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "costmodel/training/layer/operation_times.h"
#include "costmodel/training/memory/step_memory.h"
#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/time/step_time.h"
#include "graph/base/input_error.h"
#include "tests/costmodel/training/training_example.h"
#include "tests/support/repetitions.h"

namespace acplan::costmodel {
namespace {

using test_support::Repetitions;

double Seconds(const TrainingJob& job) { return PredictStepTime(job).Total(); }

TEST(ProductSeconds, IsNeverFasterThanThePeakOrTheMemory) {
  const TrainingJob job = Llama8B();
  std::mt19937 random(3);
  for (int i = 0; i < 2000; ++i) {
    const auto size = [&] { return std::floor(std::exp2(random() % 15)); };
    const MatrixProduct product{
        .rows = size(), .columns = size(), .inner = size(), .groups = 2};
    const double seconds = ProductSeconds(product, job, 2);
    const double flops = 4 * product.rows * product.columns * product.inner;
    const double bytes = 4 * (product.inner * (product.rows + product.columns) +
                              product.rows * product.columns);
    EXPECT_GE(seconds, flops / job.cluster.gpu.bf16_rate);
    EXPECT_GE(seconds, bytes / job.cluster.gpu.memory_rate);
    MatrixProduct larger = product;
    larger.rows *= 2;
    EXPECT_GE(ProductSeconds(larger, job, 2), seconds * (1 - 1e-12));
  }
}

// The bytes that a ring moves, counted rank by rank and step by step.
TEST(CollectiveSeconds, MovesWhatARingMoves) {
  TrainingJob job = Llama8B();
  const double rate =
      job.cluster.gpu.nvlink_rate * job.cluster.gpu.nvlink_share;
  const double bytes = 80e9;
  for (const int64_t size : {2, 4, 8}) {
    double moved_bytes = 0;
    for (int64_t step = 1; step < size; ++step) {
      moved_bytes += bytes / static_cast<double>(size);
    }
    const double gather =
        CollectiveSeconds(CollectiveKind::kAllGather, bytes, {size, 1}, job);
    EXPECT_NEAR(gather, moved_bytes / rate, .001 * gather);
    EXPECT_DOUBLE_EQ(
        CollectiveSeconds(CollectiveKind::kAllReduce, bytes, {size, 1}, job),
        2 * gather);
  }
  EXPECT_EQ(CollectiveSeconds(CollectiveKind::kAllReduce, bytes, {1, 1}, job),
            0);
}

TEST(CollectiveSeconds, NetworkIsSlowerTheFewerRailsAGroupHas) {
  const TrainingJob job = Llama8B();
  double before = 0;
  for (const int64_t stride : {1, 2, 4, 8}) {
    const double seconds = CollectiveSeconds(CollectiveKind::kReduceScatter,
                                             4e9, {64, stride}, job);
    EXPECT_GT(seconds, before);
    before = seconds;
  }
}

// Returns the least of the greatest weights over all divisions of contiguous
// blocks among the stages.
double LeastGreatestWeight(const std::vector<double>& weights, size_t stages) {
  std::function<double(size_t, size_t)> best =
      [&](size_t begin, size_t remaining_stages) -> double {
    if (begin == weights.size()) return 0;
    if (remaining_stages == 0) return INFINITY;
    double least = INFINITY;
    double sum = 0;
    for (size_t end = begin; end < weights.size(); ++end) {
      sum += weights[end];
      least =
          std::min(least, std::max(sum, best(end + 1, remaining_stages - 1)));
    }
    return least;
  };
  return best(0, stages);
}

TEST(DivideLayers, BalancedStagesAreTheBestOfAll) {
  std::mt19937 random(11);
  for (int round = 0; round < Repetitions(60); ++round) {
    TrainingJob job = Llama8B();
    job.shape.layers = 2 + random() % 9;
    job.shape.vocabulary = 1000 * (1 + random() % 400);
    job.strategy.pipeline = 1 + random() % 4;
    job.strategy.gpus = job.strategy.pipeline;
    job.strategy.balances_ends = true;
    const LayerParameters layer = CountLayerParameters(job.shape, false);
    const double logits =
        static_cast<double>(job.shape.vocabulary * job.shape.hidden);
    std::vector<double> weights = {0};
    for (int64_t i = 0; i < job.shape.layers; ++i) {
      weights.push_back(layer.attention + layer.dense);
    }
    weights.push_back(logits);
    double greatest = 0;
    for (const StageContent& stage : DivideLayers(job)) {
      greatest = std::max(greatest, static_cast<double>(stage.Layers()) *
                                            (layer.attention + layer.dense) +
                                        (stage.has_logits ? logits : 0));
    }
    EXPECT_NEAR(greatest,
                LeastGreatestWeight(weights,
                                    static_cast<size_t>(job.strategy.pipeline)),
                1);
  }
}

TEST(DivideLayers, LosesNoLayer) {
  std::mt19937 random(5);
  for (int round = 0; round < Repetitions(300); ++round) {
    TrainingJob job = Llama8B();
    job.shape.layers = 1 + random() % 60;
    job.strategy.pipeline = 1 + random() % 8;
    job.strategy.chunks = job.strategy.pipeline > 1 ? 1 + random() % 4 : 1;
    if (job.strategy.pipeline * job.strategy.chunks > job.shape.layers + 2) {
      continue;
    }
    job.strategy.balances_ends = random() % 2 == 0;
    int64_t layers = 0;
    int64_t logits = 0;
    int64_t embeddings = 0;
    const std::vector<StageContent> stages = DivideLayers(job);
    for (const StageContent& stage : stages) {
      layers += stage.Layers();
      logits += stage.has_logits ? 1 : 0;
      embeddings += stage.has_embedding ? 1 : 0;
    }
    EXPECT_EQ(layers, job.shape.layers);
    EXPECT_EQ(logits, 1);
    EXPECT_EQ(embeddings, 1);
    EXPECT_TRUE(stages.front().has_embedding);
  }
}

TEST(StepTime, TakesAtLeastItsFlops) {
  TrainingJob job = Llama8B();
  const double tokens = 64 * 8192.0;
  const double flops = 6 * tokens * CountMatrixParameters(job.shape) -
                       6 * tokens * 4096 * 128256;  // embedding, no product
  EXPECT_GT(Seconds(job), flops / 8 / job.cluster.gpu.bf16_rate);
  EXPECT_LT(Seconds(job), 4 * flops / 8 / job.cluster.gpu.bf16_rate);
}

TEST(StepTime, PartsAddUpAndNoneIsNegative) {
  const StepTime time = PredictStepTime(Llama8B());
  for (const double part :
       {time.compute, time.communication, time.host, time.bubble, time.data,
        time.optimizer, time.other}) {
    EXPECT_GE(part, -1e-12);
  }
}

TEST(StepTime, RecomputationCostsAForwardPassAtMost) {
  TrainingJob job = Llama8B();
  const double none = Seconds(job);
  job.strategy.recomputation = Recomputation::kSelective;
  job.strategy.parts = {LayerPart::kCoreAttention};
  const double selective = Seconds(job);
  job.strategy.recomputation = Recomputation::kFull;
  const double full = Seconds(job);
  EXPECT_GT(selective, none);
  EXPECT_GT(full, selective);
  EXPECT_LT(full, 1.5 * none);
}

TEST(StepTime, BubbleOfEqualStagesIsThatOfTheSchedule) {
  TrainingJob job = Llama8B();
  job.shape.vocabulary = 8;  // so that stages are alike
  job.strategy.pipeline = 4;
  job.strategy.global_batch = 32;
  const StepTime plain = PredictStepTime(job);
  const double microbatches = 16;
  const double busy = plain.compute + plain.communication + plain.host;
  // Messages are no part of the time that fills the pipeline.
  EXPECT_NEAR(plain.bubble / busy, 3 / microbatches, .01);
  job.strategy.chunks = 4;
  job.strategy.schedule = PipelineSchedule::kInterleaved;
  EXPECT_NEAR(PredictStepTime(job).bubble, plain.bubble / 4,
              .01 * plain.bubble);
}

TEST(StepTime, FastestMicrobatchIsTheFastestOfAll) {
  TrainingJob job = Llama8B();
  job.strategy.microbatch = 0;
  const double chosen_seconds = Seconds(job);
  for (const int64_t size : {1, 2, 4, 8}) {
    job.strategy.microbatch = size;
    EXPECT_LE(chosen_seconds, Seconds(job));
  }
}

TEST(StepTime, PrecisionThatTheGpuLacksIsRefused) {
  TrainingJob job = Llama8B();
  job.strategy.precision = ProductPrecision::kNvfp4;
  try {
    PredictStepTime(job);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                ::testing::HasSubstr("H100-SXM5 has no products in this"));
  }
}

TEST(StepMemory, StatesAreEighteenBytesAParameterOrSharded) {
  TrainingJob job = Llama8B();
  job.strategy.zero = 0;
  const auto states = [&] {
    const RankMemory memory = PredictStepMemory(job).Worst();
    return memory.parameters + memory.gradients + memory.optimizer;
  };
  const double whole = states();
  EXPECT_NEAR(whole / CountMatrixParameters(job.shape), 18, .01);
  job.strategy.zero = 1;
  EXPECT_NEAR(states() / whole, (6 + 12 / 8.0) / 18, 1e-6);
  job.strategy.zero = 3;
  EXPECT_NEAR(states() / whole, 1 / 8.0, 1e-6);
}

// Only what an update holds at a time is on the GPU, while no activations are.
TEST(StepMemory, StatesOnTheHostLeaveTheGpu) {
  TrainingJob job = Llama8B();
  job.strategy.zero = 1;
  const RankMemory plain = PredictStepMemory(job).Worst();
  job.strategy.offloads_states = true;
  const RankMemory on_host = PredictStepMemory(job).Worst();
  EXPECT_EQ(plain.host, 0);
  EXPECT_EQ(on_host.host, plain.optimizer);
  EXPECT_EQ(on_host.optimizer, 0);
  EXPECT_NEAR(plain.Total() - on_host.Total(), plain.optimizer, 1);
  EXPECT_EQ(on_host.OfUpdate(), 0);
  // Whole parameters move if they are not sharded, and then the embedding's states are more
  // than the activations of a short sequence.
  job.strategy.zero = 0;
  job.strategy.sequence = 64;
  const RankMemory whole = PredictStepMemory(job).Worst();
  const double embedding = 12.0 * static_cast<double>(job.shape.vocabulary) *
                           static_cast<double>(job.shape.hidden);
  EXPECT_GT(whole.OfUpdate(), 0);
  EXPECT_NEAR(whole.Total() - whole.Resting(),
              embedding + 2 * 12 * kPartElements, 1);
}

// Returns the seconds of an update whose parts come, are updated and leave, of which three are
// on the GPU at most.
double SecondsOfParts(int parts, double move, double update) {
  std::vector<double> came(parts), updated(parts), left(parts);
  for (int k = 0; k < parts; ++k) {
    const double room = k >= 3 ? left[k - 3] : 0;
    came[k] = std::max(k > 0 ? came[k - 1] : 0, room) + move;
    updated[k] = std::max(came[k], k > 0 ? updated[k - 1] : 0) + update;
    left[k] = std::max(updated[k], k > 0 ? left[k - 1] : 0) + move;
  }
  return left[parts - 1];
}

TEST(StepTime, UpdatesOfStatesOnTheHostWaitForTheLink) {
  for (const double host_rate : {5e9, 50e9, 400e9, 5e12, 5e13}) {
    TrainingJob job = Llama8B();
    job.strategy.zero = 1;
    const double update = PredictStepTime(job).optimizer;
    const double states = PredictStepMemory(job).Worst().optimizer;
    job.strategy.offloads_states = true;
    job.cluster.gpu.host_rate = host_rate;
    const double part = 12 * kPartElements;
    const double parts = states / part;
    const double move =
        part / (host_rate * job.cluster.constants.host_link_share);
    const double least =
        SecondsOfParts(static_cast<int>(parts), move, update / parts);
    const double predicted = PredictStepTime(job).optimizer;
    EXPECT_GE(predicted, least) << host_rate;
    EXPECT_LE(predicted, least + 2 * std::max(move, update / parts))
        << host_rate;
  }
}

// s b h (34 + 5 a s / h) / t bytes (Korthikanti et al., table 2); the mask and
// the result of the dropout of scores are 3 of the second term's 5.
TEST(StepMemory, DropoutsOfLayersAndOfScoresKeepTheirOwn) {
  TrainingJob job = Llama8B();
  job.shape = ParseHuggingFaceConfig(
      R"({"model_type": "gpt2", "n_embd": 6144, "n_head": 64, "n_layer": 48,
          "n_positions": 2048, "vocab_size": 51200})",
      "c");
  TrainingStrategy& s = job.strategy;
  s.tensor = 8;
  s.sequence_parallel = true;
  s.sequence = 2048;
  s.microbatch = 4;
  s.attention = AttentionKernel::kUnfused;
  const auto kept_share = [&](bool hidden, bool scores) {
    s.drops_hidden = hidden;
    s.drops_scores = scores;
    return SavedBytesOfLayer(job, false) / (2048. * 4 * 6144 / 8);
  };
  const double per_score = 64. * 2048 / 6144;
  EXPECT_NEAR(kept_share(true, true), 34 + 5 * per_score, .1);
  EXPECT_NEAR(kept_share(true, false), 34 + 2 * per_score, .1);
  EXPECT_NEAR(kept_share(false, true), 32 + 5 * per_score, .1);
  EXPECT_NEAR(kept_share(false, false), 32 + 2 * per_score, .1);
}

// The logits of a layer of prediction are there beside the model's own.
TEST(StepMemory, LayersOfPredictionHaveLogits) {
  TrainingJob job = Llama8B();
  job.strategy.pipeline = 2;
  const auto logits = [&](int64_t layers) {
    job.shape.mtp_layers = layers;
    return PredictStepMemory(job).stages.back().logits;
  };
  EXPECT_DOUBLE_EQ(logits(1) - logits(0), 6. * 8192 * 128256);
  EXPECT_DOUBLE_EQ(logits(2) - logits(1), 6. * 8192 * 128256);
}

TEST(StepMemory, EarlierStagesHoldMoreMicrobatches) {
  TrainingJob job = Llama8B();
  job.strategy.pipeline = 4;
  const StepMemory memory = PredictStepMemory(job);
  ASSERT_EQ(memory.stages.size(), 4u);
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_NEAR(memory.stages[i].activations / memory.stages[3].activations,
                static_cast<double>(4 - i), 1e-9);
  }
}

TEST(StepMemory, RecomputationHoldsLess) {
  TrainingJob job = Llama8B();
  const double none = PredictStepMemory(job).Worst().activations;
  job.strategy.recomputation = Recomputation::kFull;
  EXPECT_NEAR(PredictStepMemory(job).Worst().activations,
              32 * 2 * 8192 * 4096.0, 1);
  EXPECT_LT(PredictStepMemory(job).Worst().activations, none / 5);
}

}  // namespace
}  // namespace acplan::costmodel
