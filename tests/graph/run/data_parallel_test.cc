#include "graph/run/data_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/run/training_run.h"
#include "graph/trace/simulation.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using enum StorageCategory;

// A layer with two parameters and two buffers. Operator 0 computes the result, 1 the loss, 2
// and 3 the gradients, 4 the update. adapters/torch/tests/test_run_events.py compares runs
// with PyTorch's own reducer; here, sizes tell what they consist of.
class RunInDdp : public ::testing::Test {
 protected:
  RunInDdp() {
    trace_.modules = {{"N", "N", {1_s, 2_s}, {3_s, 4_s}}};
    trace_.operator_names = {"op"};
    trace_.forward_end = 2;
    trace_.backward_end = 4;
    Add(10, kInput, -1, kNever);      // 0
    Add(20, kParameter, -1, kNever);  // 1
    Add(30, kParameter, -1, kNever);  // 2
    Add(40, kBuffer, -1, kNever);     // 3
    Add(50, kBuffer, -1, kNever);     // 4
    Add(60, kActivation, 0, 2);       // 5: the result
    Add(70, kTemporary, 1, 2);        // 6: the loss
    Add(30, kGradient, 2, 5);         // 7
    Add(20, kGradient, 3, 5);         // 8
    Operator({5_s}, {0_s, 1_s, 2_s, 3_s, 4_s});
    Operator({6_s}, {5_s});
    Operator({7_s}, {});
    Operator({8_s}, {});
    Operator({}, {7_s, 8_s});
    trace_.calls.push_back({.module = ModuleId{0},
                            .start = 0,
                            .end = 1,
                            .inputs = {0_s},
                            .outputs = {5_s}});
    ModelTensors tensors;
    tensors.parameters = {{1_s, 20, "float32", true},
                          {2_s, 30, "float32", true}};
    tensors.buffers = {{3_s, 40, "int64"}, {4_s, 50, "int64"}};
    tensors.gradients = {{1, 7_s, 3}, {0, 8_s, 4}};
    trace_.model_tensors = tensors;
  }

  void Add(int64_t bytes, StorageCategory category, int32_t born, Time freed) {
    trace_.storages.push_back({.bytes = bytes,
                               .category = category,
                               .born = IdAt<OperatorId>(born),
                               .freed = freed,
                               .scope_end = freed});
  }

  void Operator(std::vector<StorageId> creates, std::vector<StorageId> reads) {
    TraceOperator op;
    op.name = 0_name;
    op.creates = op.outputs = std::move(creates);
    op.reads = std::move(reads);
    trace_.operators.push_back(op);
  }

  // Returns the bytes of each request of an iteration (-1: before the first), those
  // that are freed with a minus.
  std::vector<int64_t> Requests(int32_t iteration,
                                const DdpOptions& options) const {
    const TrainingRun run =
        MakeTrainingRun(trace_, Simulator(trace_).Live({}), {.ddp = options});
    std::vector<int64_t> requests;
    std::vector<int64_t> bytes(run.storages.size());
    for (size_t k = 0; k < run.events.events.size(); ++k) {
      const AllocatorEvent& event = run.events.events[k];
      int64_t& of_block = bytes[static_cast<size_t>(event.block)];
      const bool is_new = event.kind == AllocatorEvent::Kind::kAllocate;
      if (is_new) of_block = event.bytes;
      if (run.moments[k].iteration == iteration) {
        requests.push_back(is_new ? of_block : -of_block);
      }
    }
    return requests;
  }

  std::string Refusal(const DdpOptions& options) const {
    try {
      RequireDataParallel(trace_, options, "--ddp");
    } catch (const InputError& error) {
      return error.what();
    }
    return "";
  }

  Trace trace_;
};

TEST_F(RunInDdp, BeginsWithBroadcastsAndOneBucket) {
  EXPECT_THAT(Requests(-1, {}),
              ElementsAre(20, 30, 40, 50, 50, 90, -50, -90, 50));
  EXPECT_THAT(Requests(-1, {.broadcast_buffers = false}),
              ElementsAre(20, 30, 40, 50, 50, -50, 50));
  EXPECT_THAT(Requests(-1, {.init_sync = false}),
              ElementsAre(20, 30, 40, 50, 50));
}

TEST_F(RunInDdp, RebuildsItsBucketsInTheSecondIteration) {
  EXPECT_THAT(Requests(0, {.first_bucket_bytes = 20}),
              ElementsAre(10, 90, -90, 60, 70, -60, -70, 30, 20, -30, -20));
  EXPECT_THAT(Requests(1, {.first_bucket_bytes = 20}),
              ElementsAre(10, -10, 12, 8, -8, -12, -50, 30, 20, 90, -90, 60, 70,
                          -60, -70, 30, 20, -30, -20));
  EXPECT_THAT(
      Requests(2, {.first_bucket_bytes = 20}),
      ElementsAre(10, -10, 90, -90, 60, 70, -60, -70, 30, 20, -30, -20));
}

TEST_F(RunInDdp, FreesGradientsThatAreViewsWhenTheyAreReady) {
  EXPECT_THAT(Requests(0, {.gradient_as_bucket_view = true}),
              ElementsAre(10, 90, -90, 60, 70, -60, -70, 30, -30, 20, -20));
  EXPECT_THAT(
      Requests(0, {.gradient_as_bucket_view = true, .static_graph = true}),
      ElementsAre(10, 90, -90, 60, 60, -60, 70, -60, -70, 30, 20, -30, -20));
}

TEST_F(RunInDdp, CopiesTheResultsForUnusedParameters) {
  const DdpOptions options{.find_unused_parameters = true};
  EXPECT_THAT(Requests(-1, options),
              ElementsAre(20, 30, 40, 50, 50, 90, -50, -90, 50, 8));
  const std::vector<int64_t> copied{10,  90,  -90, 60, 60,  -60, 70,
                                    -60, -70, 30,  20, -30, -20};
  EXPECT_EQ(Requests(0, options), copied);
  // Autograd holds what the model has saved itself.
  trace_.saved = {{.storage = 5_s,
                   .packed = 1,
                   .unpacked = 2,
                   .local_end = 3,
                   .released = 3}};
  EXPECT_THAT(Requests(0, options), ElementsAre(10, 90, -90, 60, 60, 70, -60,
                                                -70, 30, -60, 20, -30, -20));
}

TEST_F(RunInDdp, RebuildsAStaticGraphAfterTwoIterations) {
  const DdpOptions options{.static_graph = true};
  EXPECT_THAT(Requests(1, options), Not(Contains(12)));
  EXPECT_THAT(Requests(2, options), Contains(12));
  EXPECT_THAT(Requests(3, options), Not(Contains(12)));
}

// The second batch's gradients are ready in another order.
TEST_F(RunInDdp,
       RebuildsItsBucketsAsTheLastReductionSaysInARunOfSeveralShapes) {
  const LivedStep step = Simulator(trace_).Live({});
  Trace other = trace_;
  other.model_tensors->gradients = {{0, 8_s, 3}, {1, 7_s, 4}};
  const DdpOptions one_each{.bucket_bytes = 1, .first_bucket_bytes = 1};
  const TrainingRun run = MakeTrainingRun(
      {{.trace = &trace_, .step = &step}, {.trace = &other, .step = &step}},
      {0, 1}, {.ddp = one_each});
  std::vector<int64_t> buckets;
  for (size_t k = 0; k < run.events.events.size(); ++k) {
    const AllocatorEvent& event = run.events.events[k];
    const bool is_new = event.kind == AllocatorEvent::Kind::kAllocate;
    const bool is_of_ddp =
        is_new && run.storages[static_cast<size_t>(event.block)] == kOfDdp;
    if (run.moments[k].iteration == 1 && is_of_ddp) {
      buckets.push_back(event.bytes);
    }
  }
  // Indices, sizes, buckets, and the broadcast of the buffers.
  EXPECT_THAT(buckets, ElementsAre(12, 8, 30, 20, 90));
}

TEST_F(RunInDdp, SynchronisesBuffersAfterMicrobatchesThatReduce) {
  trace_.microbatches = 3;
  const std::vector<int64_t> requests = Requests(2, {});
  EXPECT_EQ(std::ranges::count(requests, 90), 1);
  EXPECT_EQ(std::ranges::count(Requests(1, {}), 12), 1);
  EXPECT_THAT(Refusal({.static_graph = true}),
              HasSubstr("static_graph: expected one microbatch, found 3"));
}

TEST_F(RunInDdp, IsRefusedWhereItCannotRun) {
  EXPECT_EQ(Refusal({}), "");
  trace_.model_tensors->gradients.pop_back();
  EXPECT_THAT(Refusal({}), HasSubstr("as 1 parameter gets no gradient"));
  EXPECT_EQ(Refusal({.find_unused_parameters = true}), "");
  EXPECT_EQ(Refusal({.static_graph = true}), "");
  trace_.model_tensors.reset();
  EXPECT_THAT(Refusal({}), HasSubstr("trace the model again"));
}

}  // namespace
}  // namespace acplan::graph
