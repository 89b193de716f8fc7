#include "graph/trace/gathers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/trace/simulation.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// A layer around experts that gather their own parameters. Sizes in units of 512 bytes.
//
//   operator 0: product of the layer, 1 and 2: experts are gathered (in a buffer, and
//   out of it), 3: product of the experts, 4: result of the layer, 5: loss;
//   6: a buffer for the experts, ahead, 7: backward of the layer's end, 8: experts are
//   gathered out of the buffer, 9: backward of the experts, 10: of the layer's product
class LayerWithExperts : public ::testing::Test {
 protected:
  LayerWithExperts() {
    trace_.modules = {
        {"N", "N", {}, {}}, {"N.l", "L", {}, {}}, {"N.l.e", "E", {}, {}}};
    trace_.tensors = {{0_s}};
    trace_.calls = {{0_module, kNone, 0, 5, {0_s}, {5_s}, {0_t}},
                    {1_module, 0_call, 0, 5, {0_s}, {5_s}, {0_t}},
                    {2_module, 1_call, 3, 4, {1_s}, {4_s}, {}}};
    trace_.calls[2_call].gather_begin = 8;
    trace_.calls[2_call].gather_end = 9;
    trace_.operator_names = {"op"};
    trace_.forward_end = 6;
    trace_.backward_end = 11;
    AddStorage(1, kNone, kNever, kNever);  // 0: the input
    AddStorage(8, 0_op, 11, 4);            // 1: product of the layer, saved
    AddStorage(4, 1_op, 3, 3);             // 2: the buffer
    AddStorage(5, 2_op, 4, 4);             // 3: parameters of the experts
    AddStorage(6, 3_op, 10, 5);            // 4: product of the experts, saved
    AddStorage(2, 4_op, 8, 6);             // 5: result of the layer, saved
    AddStorage(1, 5_op, 11, kNever);       // 6: the loss
    AddStorage(4, 6_op, 9, kNever);        // 7: the buffer, in backward
    AddStorage(5, 8_op, 10, kNever);       // 8: parameters, in backward
    for (int32_t k = 0; k < 11; ++k) {
      TraceOperator op;
      op.call = k == 3 ? 2_call : k < 5 ? 1_call : kNone;
      op.runtime_ms = 1.0 + k;
      op.once = k == 1 || k == 2;
      trace_.operators.push_back(op);
    }
    for (const StorageId s : IdRange(1_s, trace_.storages.end_id())) {
      TraceOperator& maker = trace_.operators[trace_.storages[s].born];
      maker.creates = maker.outputs = {s};
    }
    AddSaved(1_s, 1, 1_call, 10);
    AddSaved(4_s, 4, 2_call, 9);
    AddSaved(5_s, 5, 1_call, 7);
  }

  void AddStorage(int64_t units, OperatorId born, Time freed, Time scope) {
    trace_.storages.push_back({.bytes = units * 512,
                               .category = StorageCategory::kTemporary,
                               .born = born,
                               .freed = freed,
                               .scope_end = scope});
  }

  void AddSaved(StorageId storage, Time packed, CallId call, Time unpacked) {
    trace_.saved.push_back({.storage = storage,
                            .packed = packed,
                            .call = call,
                            .unpacked = unpacked,
                            .local_end = unpacked + 1,
                            .released = unpacked + 1});
  }

  std::vector<int64_t> Units(const std::vector<CheckpointedModule>& modules) {
    std::vector<int64_t> units = Simulate(trace_, modules).live_bytes.values();
    for (int64_t& bytes : units) bytes /= 512;
    return units;
  }

  std::vector<int32_t> Operators(
      const std::vector<CheckpointedModule>& modules) {
    std::vector<int32_t> operators;
    for (const Simulation::Step& step : Simulate(trace_, modules).steps) {
      operators.push_back(IndexOf(step.op));
    }
    return operators;
  }

  Trace trace_;
};

TEST_F(LayerWithExperts, IsAsInTheTraceWithoutUnits) {
  EXPECT_THAT(Units({}),
              ElementsAre(9, 13, 18, 20, 17, 18, 22, 22, 25, 21, 10));
}

TEST_F(LayerWithExperts, ThatRunsAgainGathersEarlyAndOnce) {
  const std::vector<CheckpointedModule> layer = {{.module = 1_module}};
  EXPECT_THAT(Operators(layer),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 0, 8, 3, 4, 7, 9, 10));
  EXPECT_THAT(
      Units(layer),
      ElementsAre(9, 13, 18, 20, 9, 4, 6,
                  // Again: the buffer goes when the experts are gathered.
                  6 + 8, 6 + 8 + 5, 2 + 8 + 5 + 6, 2 + 8 + 5 + 6 + 2,
                  2 + 8 + 5 + 6 + 2, 2 + 8 + 5 + 6, 2 + 8));
  EXPECT_EQ(Simulate(trace_, layer).recompute_ms, 1 + 4 + 5);
}

TEST_F(LayerWithExperts, ThatSavesEverythingGathersEarlyToo) {
  // The recomputation begins when the layer's result is asked for, all the same.
  CheckpointedModule layer = {.module = 1_module};
  using enum OperatorDecision;
  layer.decisions = {kSave, kRecompute, kSave, kSave, kSave};
  EXPECT_THAT(Operators({layer}),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 8, 7, 9, 10));
  // Experts alone run again after they are gathered.
  EXPECT_THAT(Operators({{.module = 2_module}}),
              ElementsAre(0, 1, 2, 3, 4, 5, 6, 7, 8, 3, 9, 10));
}

TEST_F(LayerWithExperts, CountsABufferUntilWhatItFillsMayTakeItsPlace) {
  EXPECT_THAT(GathersOf(trace_), ElementsAre(Gather{.call = 2_call,
                                                    .begin = 8,
                                                    .end = 9,
                                                    .filled_bytes = 5 * 512,
                                                    .buffer_bytes = 4 * 512}));
  EXPECT_EQ(HeldUnderEveryPlan(trace_)[7_s], 8);
  trace_.storages[8_s].bytes = 512;  // less than the buffer
  EXPECT_EQ(HeldUnderEveryPlan(trace_)[7_s], 7);
  EXPECT_EQ(HeldUnderEveryPlan(trace_)[8_s], 10);
}

TEST_F(LayerWithExperts, RoundTripsThroughTheFile) {
  const std::string text = ToJson(trace_);
  EXPECT_EQ(ParseTrace(text, "t"), trace_);
  nlohmann::json half = nlohmann::json::parse(text);
  half["calls"][2].erase("gather_end");
  try {
    ParseTrace(half.dump(), "t");
    ADD_FAILURE() << "accepted";
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("expected gather_begin and gather_end or neither"));
  }
}

}  // namespace
}  // namespace acplan::graph
