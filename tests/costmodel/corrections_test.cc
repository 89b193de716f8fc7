#include "costmodel/execution/corrections.h"

#include <gtest/gtest.h>

#include "costmodel/llm/evaluation.h"
#include "costmodel/validation/megatron_2021.h"
#include "costmodel/validation/sequence_parallelism.h"
#include "tests/costmodel/example_strategy.h"

namespace acplan::costmodel {
namespace {

Evaluation With(const Execution& execution, bool Corrections::*one) {
  Corrections corrections;
  if (one) corrections.*one = true;
  return Evaluate(ExampleModel(), RoomySystem(), execution, corrections);
}

Evaluation Plain(const Execution& execution) {
  return With(execution, nullptr);
}

TEST(Corrections, EveryOneIsInTheTable) {
  const Corrections all = AllCorrections();
  EXPECT_EQ(sizeof(Corrections), kCorrections.size());
  for (const Correction& correction : kCorrections) {
    EXPECT_TRUE(all.*correction.is_on) << correction.name;
    EXPECT_FALSE(Corrections().*correction.is_on);
  }
}

TEST(Corrections, RecomputeTotalsCountEachLayerOnce) {
  const Evaluation plain = Plain(ExampleStrategy());
  const Evaluation corrected =
      With(ExampleStrategy(), &Corrections::recompute_totals);
  // But for communication, which is not a recomputed layer.
  EXPECT_LE(corrected.block.recompute.flops, corrected.block.forward.flops);
  EXPECT_NEAR(corrected.block.recompute.flops, corrected.block.forward.flops,
              1e-4 * corrected.block.forward.flops);
  EXPECT_GT(plain.block.recompute.flops, 5 * plain.block.forward.flops);
  EXPECT_EQ(plain.block.recompute.time, corrected.block.recompute.time);
}

TEST(Corrections, AttentionRecomputeIncludesTheValues) {
  Execution execution = ExampleStrategy();
  execution.activation_recompute = Recompute::kAttentionOnly;
  const Evaluation plain = With(execution, &Corrections::recompute_totals);
  Corrections both;
  both.recompute_totals = true;
  both.attention_recompute_all = true;
  const Evaluation corrected =
      Evaluate(ExampleModel(), RoomySystem(), execution, both);
  // 2 microbatch * heads / TP * seq * seq * head size.
  const double heads = 2. * 64 / 8;
  EXPECT_NEAR(corrected.block.recompute.flops - plain.block.recompute.flops,
              heads * 2 * 2048 * 2048 * 96, 1);
}

TEST(Corrections, AttentionRecomputeKeepsItsInput) {
  Execution execution = ExampleStrategy();
  execution.activation_recompute = Recompute::kAttentionOnly;
  const Evaluation plain = Plain(execution);
  const Evaluation corrected =
      With(execution, &Corrections::attention_recompute_keeps_input);
  // Rows * hidden, two bytes each; nothing is gathered again.
  EXPECT_EQ(corrected.block.act_storage_space - plain.block.act_storage_space,
            2. * 2048 * 6144 * 2);
  EXPECT_GT(plain.block.repeated_comm.base_size, 0);
  EXPECT_EQ(corrected.block.repeated_comm.base_size, 0);
}

TEST(Corrections, CheckpointsAreSharded) {
  const Evaluation plain = Plain(ExampleStrategy());
  const Evaluation corrected =
      With(ExampleStrategy(), &Corrections::sharded_checkpoints);
  EXPECT_EQ(plain.memory.checkpoints.all, 8 * corrected.memory.checkpoints.all);
}

TEST(Corrections, OverlappedLinearsStoreTheirInput) {
  Execution execution = ExampleStrategy();
  execution.activation_recompute = Recompute::kNone;
  execution.tensor_par_overlap = TensorOverlap::kRing;
  const double rows_by_hidden = 2. * 2048 * 6144 * 2;
  EXPECT_EQ(With(execution, &Corrections::gathered_input_stored)
                    .block.act_storage_space -
                Plain(execution).block.act_storage_space,
            2 * rows_by_hidden * 7 / 8);
  execution.tensor_par_comm_type = TensorCommType::kAllReduce;
  // The inputs of the projection (hidden / 8) and of the second linear layer.
  EXPECT_EQ(With(execution, &Corrections::row_parallel_input_stored)
                    .block.act_storage_space -
                Plain(execution).block.act_storage_space,
            rows_by_hidden / 8 * (1 + 4));
}

TEST(Corrections, APipesTileCountsOnce) {
  Execution execution = ExampleStrategy();
  execution.tensor_par_overlap = TensorOverlap::kPipe;
  const Evaluation plain = Plain(execution);
  const Evaluation corrected = With(execution, &Corrections::pipe_tile_once);
  EXPECT_LT(corrected.block.forward.time, plain.block.forward.time);
  EXPECT_EQ(corrected.block.forward_comm.base_exposed,
            plain.block.forward_comm.base_exposed);
}

TEST(Corrections, ExposedTimeIsThatOfThePlace) {
  Execution execution = ExampleStrategy();
  execution.tensor_par_overlap = TensorOverlap::kPipe;
  execution.tensor_par_comm_type = TensorCommType::kScatteredSend;
  const Evaluation plain = Plain(execution);
  EXPECT_EQ(plain.block.forward_comm.base_exposed,
            plain.block.forward_comm.edge_exposed);
  const Evaluation corrected = With(execution, &Corrections::exposed_by_stage);
  EXPECT_NE(corrected.block.forward_comm.base_exposed,
            corrected.block.forward_comm.edge_exposed);
}

// 2 bytes of weights, 4 of gradients, 12 of state.
TEST(Corrections, EighteenBytesAParameter) {
  const Evaluation plain = Plain(ExampleStrategy());
  const Evaluation corrected =
      With(ExampleStrategy(), &Corrections::full_precision_gradients);
  const auto bytes = [](const Evaluation& evaluation) {
    return (evaluation.memory.weights.all + evaluation.memory.weight_grads.all +
            evaluation.memory.optimizer.all) /
           (evaluation.memory.weights.all / 2);
  };
  EXPECT_NEAR(bytes(plain), 16 + 2. / 24, 1e-9);
  EXPECT_DOUBLE_EQ(bytes(corrected), 18);
}

// The same gradients, wherever they lie.
TEST(Corrections, OffloadedGradientsHaveFullPrecision) {
  Execution execution = ExampleStrategy();
  execution.optimizer_offload = true;
  execution.optimizer_sharding = true;
  const MemoryNeeds needs =
      With(execution, &Corrections::full_precision_gradients).memory;
  const double parameters = needs.weights.all / 2;
  EXPECT_DOUBLE_EQ(needs.tier2, parameters * (4 + 12. / 4));
  EXPECT_DOUBLE_EQ(needs.weight_grads.resident, parameters * 4 * 2 / 24);
}

TEST(Corrections, OptimizerStepTakesLonger) {
  const Evaluation plain = Plain(ExampleStrategy());
  const Evaluation corrected =
      With(ExampleStrategy(), &Corrections::optimizer_traffic);
  EXPECT_DOUBLE_EQ(corrected.block.optimizer.mem_accessed,
                   plain.block.optimizer.mem_accessed * 30 / 12);
  EXPECT_GT(corrected.times.optimizer, plain.times.optimizer);
}

TEST(Corrections, NotAllGradientsLiveAtOnce) {
  const Evaluation plain = Plain(ExampleStrategy());
  const Evaluation corrected =
      With(ExampleStrategy(), &Corrections::live_gradients);
  EXPECT_LT(corrected.memory.activation_grads, plain.memory.activation_grads);
  EXPECT_GT(corrected.memory.activation_grads, 0);
}

TEST(Corrections, TheOptimizerMovesOnceABatch) {
  Execution execution = ExampleStrategy();
  execution.optimizer_offload = true;
  const Evaluation plain = Plain(execution);
  const Evaluation corrected =
      With(execution, &Corrections::optimizer_offload_once);
  EXPECT_LT(corrected.times.backward_offload_exposed,
            plain.times.backward_offload_exposed);
  EXPECT_GT(corrected.times.backward_offload_exposed, 0);
  EXPECT_EQ(corrected.memory.tier1, plain.memory.tier1);
}

TEST(Corrections, TheOptimizerStepHidesCommunicationOnce) {
  Execution execution = ExampleStrategy();
  execution.data_par_overlap = true;
  execution.batch_size = 8;
  execution.microbatch_size = 1;
  const Evaluation plain = Plain(execution);
  const Evaluation corrected =
      With(execution, &Corrections::optimizer_overlap_once);
  EXPECT_GT(plain.times.data_parallel.tail_window,
            corrected.times.data_parallel.tail_window);
  EXPECT_LE(plain.times.data_parallel.exposed,
            corrected.times.data_parallel.exposed);
}

TEST(Corrections, SmoothEfficiencyIsNeverBelowTheSteps) {
  const Evaluation plain = Plain(ExampleStrategy());
  const Evaluation corrected =
      With(ExampleStrategy(), &Corrections::smooth_efficiency);
  EXPECT_LT(corrected.times.forward, plain.times.forward);
  EXPECT_EQ(corrected.block.forward.flops, plain.block.forward.flops);
}

TEST(Corrections, RingsPayForTheirSteps) {
  Execution execution = ExampleStrategy();
  execution.tensor_par_comm_type = TensorCommType::kAllReduce;
  System system = RoomySystem();
  Corrections rings;
  rings.ring_collectives = true;
  const double plain =
      Evaluate(ExampleModel(), system, execution).times.tensor_comm_link;
  const double corrected =
      Evaluate(ExampleModel(), system, execution, rings).times.tensor_comm_link;
  // Twice 7 latencies instead of one, 4 all-reduces of 24 blocks, 8
  // microbatches.
  EXPECT_NEAR(corrected - plain, 13 * 1e-5 * 4 * 24 * 8, 1e-9);
}

TEST(Corrections, StatesAgreeWithThePaper) {
  const std::filesystem::path data = ACPLAN_DATA_DIR;
  const Figure1 plain = CompareFigure1(data, {});
  const Figure1 corrected = CompareFigure1(data, AllCorrections());
  EXPECT_NEAR(AverageError(plain.states), 8.49, .005);
  EXPECT_NEAR(MaximumError(plain.states), 10.84, .005);
  EXPECT_NEAR(AverageError(plain.activations), 2.08, .005);
  EXPECT_NEAR(MaximumError(plain.activations), 8.74, .005);
  EXPECT_LT(MaximumError(corrected.states), .05);
}

TEST(Corrections, PublishedErrorsAreReproduced) {
  const std::filesystem::path data = ACPLAN_DATA_DIR;
  EXPECT_NEAR(AverageError(CompareFigure7(data, {})), 6.69, .005);
  EXPECT_NEAR(MaximumError(CompareFigure7(data, {})), 30.41, .005);
  EXPECT_NEAR(AverageError(CompareTable5(data, {})), 3.65, .005);
  EXPECT_NEAR(MaximumError(CompareTable5(data, {})), 8.87, .005);
  EXPECT_LT(AverageError(CompareFigure7(data, AllCorrections())), 4.1);
}

// All times come out low, as the model has no embeddings, logits and jitter.
TEST(Corrections, MegatronsThroughputs) {
  for (const bool is_corrected : {false, true}) {
    const std::vector<MegatronRun> runs = CompareMegatron2021(
        ACPLAN_DATA_DIR, is_corrected ? AllCorrections() : Corrections());
    ASSERT_EQ(runs.size(), 10);
    for (const MegatronRun& run : runs) EXPECT_LT(run.TimeError(), 0);
    EXPECT_NEAR(AverageTimeError(runs), is_corrected ? 13.9 : 12.5, .2);
  }
}

}  // namespace
}  // namespace acplan::costmodel
