#include "graph/dataflow/trace_dataflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/dataflow/dataflow_analysis.h"
#include "tests/support/trace_ids.h"

namespace acplan::graph {
namespace {

using testing::ElementsAre;

// Returns y = relu(x w), z = y + 1 in a call; its backward makes the gradients
// of y, of x w and of w. The multiplication saves x and w, relu its result.
Trace OneCall() {
  Trace trace;
  trace.forward_end = 4;
  trace.backward_end = 7;
  trace.operator_names = {"mm", "relu", "add", "loss", "back", "out"};
  trace.modules = {
      {.fqn = "m", .class_name = "M", .parameters = {1_s}, .buffers = {}}};
  trace.calls = {{.module = 0_module,
                  .start = 0,
                  .end = 3,
                  .inputs = {0_s},
                  .outputs = {4_s},
                  .backward_start = 5,
                  .backward_end = 7}};
  trace.storages = {{.bytes = 10},  // x
                    {.bytes = 20, .category = StorageCategory::kParameter},
                    {.bytes = 30, .born = 0_op},   // x w
                    {.bytes = 40, .born = 1_op},   // y
                    {.bytes = 50, .born = 2_op},   // z
                    {.bytes = 60, .born = 3_op},   // loss
                    {.bytes = 70, .born = 4_op},   // gradient of z
                    {.bytes = 80, .born = 5_op},   // gradient of x w
                    {.bytes = 90, .born = 6_op}};  // gradient of w
  const auto run = [&](OperatorNameId name, CallId call,
                       std::vector<StorageId> reads, StorageId result) {
    trace.operators.Add({.name = name,
                         .call = call,
                         .reads = std::move(reads),
                         .creates = {result},
                         .outputs = {result},
                         .mutates = {}});
  };
  run(0_name, 0_call, {0_s, 1_s}, 2_s);
  run(1_name, 0_call, {2_s}, 3_s);
  run(2_name, 0_call, {3_s}, 4_s);
  run(3_name, kNone, {4_s}, 5_s);
  run(4_name, kNone, {5_s}, 6_s);
  run(4_name, kNone, {3_s, 6_s}, 7_s);
  run(5_name, kNone, {0_s, 7_s}, 8_s);
  trace.saved = {{.storage = 0_s, .packed = 0, .call = 0_call},
                 {.storage = 1_s, .packed = 0, .call = 0_call},
                 {.storage = 3_s, .packed = 2, .call = 0_call}};
  return trace;
}

TEST(TraceDataflowTest, IsTheGraphOfACall) {
  const DataflowGraph graph = DataflowOf(OneCall(), 0_call);
  std::vector<std::string> names;
  for (const DataflowNode& node : graph.nodes) names.push_back(node.name);
  EXPECT_THAT(names, ElementsAre("storage 0", "storage 1", "0 mm", "1 relu",
                                 "2 add", "returned", "5 back", "6 out"));
  EXPECT_EQ(graph.nodes[0].stage, DataflowStage::kPlaceholder);
  EXPECT_TRUE(graph.nodes[0].saved);
  EXPECT_THAT(graph.nodes[2].inputs, ElementsAre(0, 1));
  EXPECT_FALSE(graph.nodes[2].saved);
  EXPECT_TRUE(graph.nodes[3].saved);
  EXPECT_EQ(graph.nodes[3].bytes, 40);
  EXPECT_THAT(graph.nodes[5].inputs, ElementsAre(4));
  // The gradient of the result comes from outside of the call's backward.
  EXPECT_THAT(graph.nodes[6].inputs, ElementsAre(3));
  EXPECT_EQ(graph.nodes[6].stage, DataflowStage::kBackward);
  EXPECT_THAT(graph.nodes[7].inputs, ElementsAre(0, 6));
  EXPECT_EQ(ParseDataflowGraph(ToJson(graph), "g"), graph);
}

TEST(TraceDataflowTest, IsAnalysedAsAnyGraph) {
  EXPECT_EQ(Analyse(DataflowOf(OneCall(), 0_call)),
            (GraphInfo{.fwd_mem_in = 30,
                       .fwd_mem_tmp = 40,
                       .bwd_mem_tmp = 80,
                       .bwd_mem_out = 90}));
}

TEST(TraceDataflowTest, WithoutABackwardHasNoBackwardNodes) {
  Trace trace = OneCall();
  trace.calls[0_call].backward_start = kNever;
  trace.calls[0_call].backward_end = kNever;
  const DataflowGraph graph = DataflowOf(trace, 0_call);
  EXPECT_EQ(graph.nodes.size(), 6u);
  EXPECT_EQ(Analyse(graph).bwd_mem_out, 0);
}

}  // namespace
}  // namespace acplan::graph
