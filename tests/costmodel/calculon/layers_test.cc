#include "costmodel/calculon/layers/layers.h"

#include <gtest/gtest.h>

#include "costmodel/calculon/layers/layer_times.h"

namespace acplan::costmodel {
namespace {

using enum Stage;

// Returns a context: two bytes an element, the optimizer on 4 processors, 4
// tensor-parallel peers.
LayerContext Context(TensorCommType comm_type = TensorCommType::kAllReduce) {
  return {.bytes_per_element = 2,
          .optimizer_shards = 4,
          .tensor_par = 4,
          .comm_type = comm_type};
}

void ExpectWork(const Layer& layer, Stage stage, double flops, double bytes) {
  EXPECT_EQ(layer.At(stage).flops, flops) << layer.name;
  EXPECT_EQ(layer.At(stage).mem_accessed, bytes) << layer.name;
}

// 10 rows by a 3 x 5 matrix: 30 inputs, 50 outputs, 15 weights.
TEST(Layers, Linear) {
  const Layer layer = Linear(Context(), "linear", {10, 3, 5}, {});
  EXPECT_TRUE(layer.uses_matrix_engine);
  ExpectWork(layer, kForward, 2 * 10 * 3 * 5, 2 * (30 + 50 + 15));
  ExpectWork(layer, kActivationGradient, 300, 2 * (15 + 30 + 50));
  ExpectWork(layer, kWeightGradient, 300, 2 * (15 + 30 + 50));
  // A master copy and two moments of 4 bytes.
  ExpectWork(layer, kOptimizerStep, 15. / 4 * 11, 15 * 12. / 4);
  EXPECT_EQ(layer.weight_bytes, 30);
  EXPECT_EQ(layer.activation_bytes, 60);
  EXPECT_EQ(layer.output_bytes, 100);
  EXPECT_EQ(layer.activation_grad_bytes, 100);
  EXPECT_EQ(layer.weight_grad_bytes, 30. / 4);
  EXPECT_EQ(layer.weight_grad_unsharded_bytes, 60);
  EXPECT_EQ(layer.optimizer_bytes, 45);
}

TEST(Layers, NoMasterCopyInFloat32) {
  LayerContext context = Context();
  context.bytes_per_element = 4;
  EXPECT_EQ(Linear(context, "linear", {10, 3, 5}, {}).optimizer_bytes,
            15 * 8. / 4);
}

// 6 products of a 7 x 2 by a 2 x 3 matrix: 6 (14 + 6) inputs, 6 * 21 outputs.
TEST(Layers, BatchMatMul) {
  const Layer layer = BatchMatMul(Context(), "matmul", {6, 7, 2, 3}, {});
  EXPECT_TRUE(layer.uses_matrix_engine);
  ExpectWork(layer, kForward, 6 * 2 * 7 * 2 * 3, 2 * (120 + 126));
  ExpectWork(layer, kActivationGradient, 2 * 504, 2 * (120 + 126));
  ExpectWork(layer, kWeightGradient, 0, 0);
  ExpectWork(layer, kOptimizerStep, 0, 0);
  EXPECT_EQ(layer.activation_bytes, 240);
  EXPECT_EQ(layer.activation_grad_bytes, 252);
}

TEST(Layers, LayerNorm) {
  const Layer layer = LayerNorm(Context(), "norm", 100, 10, {});
  EXPECT_FALSE(layer.uses_matrix_engine);
  EXPECT_EQ(layer.weights, 20);
  ExpectWork(layer, kForward, 900, 2 * (100 + 100 + 20));
  ExpectWork(layer, kActivationGradient, 1400, 2 * (20 + 200));
  ExpectWork(layer, kWeightGradient, 700, 2 * (20 + 200));
}

TEST(Layers, DropOutKeepsAMaskOfBytes) {
  const Layer layer = DropOut(Context(), "dropout", 100, {});
  ExpectWork(layer, kForward, 100, 2 * 200 + 100);
  ExpectWork(layer, kActivationGradient, 100, 500);
  EXPECT_EQ(layer.activation_bytes, 100);
  EXPECT_EQ(layer.activation_grad_bytes, 100);
}

TEST(Layers, ActivationStoresNothingWhereFused) {
  const Layer separate = Activation(Context(), "gelu", 100, false, {});
  ExpectWork(separate, kForward, 800, 400);
  ExpectWork(separate, kActivationGradient, 1300, 400);
  EXPECT_EQ(separate.activation_bytes, 200);
  const Layer fused = Activation(Context(), "gelu", 100, true, {});
  ExpectWork(fused, kForward, 800, 400);
  EXPECT_EQ(fused.activation_bytes, 0);
  EXPECT_EQ(fused.activation_grad_bytes, 0);
}

TEST(Layers, SoftMax) {
  const Layer layer = SoftMax(Context(), "softmax", 100, {});
  ExpectWork(layer, kForward, 500, 400);
  ExpectWork(layer, kActivationGradient, 800, 400);
  EXPECT_EQ(layer.activation_bytes, 200);
}

TEST(Layers, ElementWise) {
  const Layer layer = ElementWise(Context(), "residual", 100, 60, {});
  ExpectWork(layer, kForward, 100, 2 * (160 + 100));
  ExpectWork(layer, kActivationGradient, 160, 2 * (160 + 100));
  EXPECT_EQ(layer.activation_bytes, 320);
}

TEST(Layers, ForkAddsUpTheGradientsOfItsUsers) {
  const Layer layer = Fork(Context(), "fork", 100, 3, {});
  ExpectWork(layer, kForward, 0, 0);
  ExpectWork(layer, kActivationGradient, 300, 2 * 100 * 4);
  EXPECT_EQ(layer.activation_bytes, 200);
  EXPECT_EQ(layer.activation_grad_bytes, 0);
}

TEST(Layers, TensorParallelCommReducesOnOneSide) {
  const Layer gather = TensorParallelComm(Context(), "f", 100, false, {});
  ExpectWork(gather, kForward, 0, 0);
  ExpectWork(gather, kActivationGradient, 75, 2 * 200);
  EXPECT_EQ(gather.activation_bytes, 0);
  EXPECT_EQ(gather.activation_grad_bytes, 200);
  const Layer reduce = TensorParallelComm(Context(), "g", 100, true, {});
  ExpectWork(reduce, kForward, 75, 2 * 200);
  ExpectWork(reduce, kActivationGradient, 0, 0);
  EXPECT_EQ(reduce.activation_bytes, 200);
  EXPECT_EQ(reduce.activation_grad_bytes, 0);
  const Layer scattered = TensorParallelComm(
      Context(TensorCommType::kScattered), "f", 100, false, {});
  ExpectWork(scattered, kForward, 0, 2 * 200);
  EXPECT_EQ(scattered.activation_bytes, 200 / 4);
  EXPECT_EQ(scattered.activation_grad_bytes, 200 / 4);
}

TEST(Layers, TensorParallelCommAloneIsNothing) {
  LayerContext context = Context();
  context.tensor_par = 1;
  const Layer layer = TensorParallelComm(context, "g", 100, true, {});
  ExpectWork(layer, kForward, 0, 0);
  EXPECT_EQ(layer.inputs, 0);
  EXPECT_EQ(layer.activation_bytes, 0);
}

// 10 rows, 8 -> 12; column-parallel: 12 / 4 outputs; row-parallel: 8 / 4
// inputs.
TEST(Layers, OverlappedLinearDividesOutputOrInput) {
  const Layer column =
      OverlappedLinear(Context(), "qkv", {10, 8, 12}, false, {});
  EXPECT_EQ(column.inputs, 80);
  EXPECT_EQ(column.outputs, 30);
  EXPECT_EQ(column.weights, 24);
  EXPECT_EQ(column.At(kForward).flops, 2 * 10 * 8 * 3);
  EXPECT_EQ(column.activation_bytes, 160);
  EXPECT_EQ(column.activation_grad_bytes, 0);
  const Layer row = OverlappedLinear(Context(), "mlp", {10, 8, 12}, true, {});
  EXPECT_EQ(row.inputs, 20);
  EXPECT_EQ(row.outputs, 120);
  EXPECT_EQ(row.activation_bytes, 0);
  EXPECT_EQ(row.activation_grad_bytes, 2 * 240);
}

TEST(Layers, OverlappedLinearWithSequenceParallelism) {
  const LayerContext context = Context(TensorCommType::kScattered);
  const Layer column = OverlappedLinear(context, "qkv", {10, 8, 12}, false, {});
  EXPECT_EQ(column.activation_bytes, 160 / 4);
  EXPECT_EQ(column.activation_grad_bytes, 60);
  const Layer row = OverlappedLinear(context, "mlp", {10, 8, 12}, true, {});
  EXPECT_EQ(row.activation_bytes, 40);
  EXPECT_EQ(row.activation_grad_bytes, 2 * 240 / 4);
}

// 1 TFLOP/s on both engines, 1 GB/s of memory and of the network.
class LayerTimes : public testing::Test {
 protected:
  LayerTimes() {
    network_.bandwidth = 1e9;
    network_.efficiency = .5;
    network_.latency = 1e-3;
    network_.processor_usage = .25;
    network_.volumes = {{{1, 0}, {1, -1}, {1, -1}, {2, -1}}};
    hardware_ = {.matrix = &matrix_,
                 .vector = &vector_,
                 .mem1 = &memory_,
                 .network = &network_,
                 .is_roofline = false,
                 .bytes_per_element = 2,
                 .peers = 4,
                 .comm_type = TensorCommType::kScattered,
                 .overlap = TensorOverlap::kRing};
  }

  EfficiencyCurve matrix_{1e12, {{0, .5}}};
  EfficiencyCurve vector_{1e12, {{0, .25}}};
  EfficiencyCurve memory_{1e9, {{0, .8}}};
  Network network_;
  LayerHardware hardware_;
};

TEST_F(LayerTimes, WorkRunsOnItsEngine) {
  const Layer matrix = Linear(Context(), "linear", {1e6, 10, 10}, {});
  const WorkTime forward = TimeWork(matrix, kForward, hardware_);
  EXPECT_DOUBLE_EQ(forward.flops, 2e8 / 5e11);
  EXPECT_DOUBLE_EQ(forward.mem, 2 * (2e7 + 100) / 8e8);
  EXPECT_DOUBLE_EQ(TimeProcessing(matrix, forward, 0, hardware_).run,
                   forward.flops + forward.mem);
  hardware_.is_roofline = true;
  EXPECT_EQ(TimeProcessing(matrix, forward, 0, hardware_).run, forward.mem);
  // Weights' gradients are on the matrix engine, the step on the other one.
  EXPECT_DOUBLE_EQ(FlopsTime(matrix, kWeightGradient, hardware_), 2e8 / 5e11);
  EXPECT_DOUBLE_EQ(FlopsTime(matrix, kOptimizerStep, hardware_),
                   100. / 4 * 11 / 2.5e11);
}

TEST_F(LayerTimes, WhatAStageSends) {
  using enum BlockPlace;
  const Layer gather =
      TensorParallelComm(Context(TensorCommType::kScatteredSend), "f", 1e6,
                         false, {.is_communication_repeated = true});
  hardware_.comm_type = TensorCommType::kScatteredSend;
  EXPECT_EQ(CommBytes(gather, kForward, kBase, hardware_), 0);
  EXPECT_EQ(CommBytes(gather, kForward, kEdge, hardware_), 2e6);
  EXPECT_EQ(CommBytes(gather, kActivationGradient, kBase, hardware_), 2e6);
  EXPECT_EQ(CommBytes(gather, kWeightGradient, kBase, hardware_), 0);
  EXPECT_EQ(CommBytes(gather, kWeightGradient, kEdge, hardware_), 2e6);
  EXPECT_EQ(CommBytes(gather, kOptimizerStep, kEdge, hardware_), 0);
  // All-reduce in the middle, reduce-scatter at the edge; 3/4 of the elements
  // are added up.
  const WorkTime work = TimeWork(gather, kActivationGradient, hardware_);
  const double adding = 7.5e5 / 2.5e11 + 4e6 / 8e8;
  EXPECT_DOUBLE_EQ(NetTime(gather, kActivationGradient, kBase, work, hardware_),
                   1e-3 + 2e6 * 2 * .75 / 5e8 + adding);
  EXPECT_DOUBLE_EQ(NetTime(gather, kActivationGradient, kEdge, work, hardware_),
                   1e-3 + 2e6 * .75 / 5e8 + adding);
}

// Four tiles; computing takes 8 s, and 1/.75 of that if it is slowed down.
TEST_F(LayerTimes, RingHidesCommunicationBehindThreeTiles) {
  Layer layer = OverlappedLinear(Context(TensorCommType::kScattered), "qkv",
                                 {10, 8, 12}, false, {});
  const WorkTime work{6, 2};
  const ProcessingTime hidden = TimeProcessing(layer, work, 4, hardware_);
  EXPECT_EQ(hidden.exposed, 0);
  EXPECT_DOUBLE_EQ(hidden.run, 8 + 3 * 1 * .25);
  const ProcessingTime exposed = TimeProcessing(layer, work, 20, hardware_);
  EXPECT_DOUBLE_EQ(exposed.exposed, 3 * (5 - 8. / 4));
  EXPECT_DOUBLE_EQ(exposed.run, 2 + 3 * (8. + 2) / 4);
}

TEST_F(LayerTimes, PipeExposesATileTwice) {
  const Layer layer = OverlappedLinear(Context(TensorCommType::kScattered),
                                       "qkv", {10, 8, 12}, false, {});
  hardware_.overlap = TensorOverlap::kPipe;
  const ProcessingTime twice = TimeProcessing(layer, {6, 2}, 20, hardware_);
  EXPECT_DOUBLE_EQ(twice.exposed, 9 + 5);
  EXPECT_DOUBLE_EQ(twice.run, 9.5 + 5);
}

TEST_F(LayerTimes, BandwidthThatHidesATile) {
  const Layer layer = OverlappedLinear(Context(TensorCommType::kScattered),
                                       "qkv", {10, 8, 12}, false, {});
  EXPECT_DOUBLE_EQ(
      RequiredBandwidth(layer, kForward, BlockPlace::kBase, {6, 2}, hardware_),
      160. / 4 / (6 / .75 / 4));
}

}  // namespace
}  // namespace acplan::costmodel
