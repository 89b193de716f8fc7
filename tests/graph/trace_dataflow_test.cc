#include "graph/dataflow/trace_dataflow.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "graph/dataflow/dataflow_analysis.h"

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
      {.fqn = "m", .class_name = "M", .parameters = {1}, .buffers = {}}};
  trace.calls = {{.module = 0,
                  .start = 0,
                  .end = 3,
                  .inputs = {0},
                  .outputs = {4},
                  .backward_start = 5,
                  .backward_end = 7}};
  trace.storages = {{.bytes = 10},  // x
                    {.bytes = 20, .category = StorageCategory::kParameter},
                    {.bytes = 30, .born = 0},   // x w
                    {.bytes = 40, .born = 1},   // y
                    {.bytes = 50, .born = 2},   // z
                    {.bytes = 60, .born = 3},   // loss
                    {.bytes = 70, .born = 4},   // gradient of z
                    {.bytes = 80, .born = 5},   // gradient of x w
                    {.bytes = 90, .born = 6}};  // gradient of w
  const auto run = [&](int32_t name, int32_t call, std::vector<int32_t> reads,
                       int32_t result) {
    trace.operators.push_back({.name = name,
                               .call = call,
                               .reads = std::move(reads),
                               .creates = {result},
                               .outputs = {result},
                               .mutates = {}});
  };
  run(0, 0, {0, 1}, 2);
  run(1, 0, {2}, 3);
  run(2, 0, {3}, 4);
  run(3, -1, {4}, 5);
  run(4, -1, {5}, 6);
  run(4, -1, {3, 6}, 7);
  run(5, -1, {0, 7}, 8);
  trace.saved = {{.storage = 0, .packed = 0, .call = 0},
                 {.storage = 1, .packed = 0, .call = 0},
                 {.storage = 3, .packed = 2, .call = 0}};
  return trace;
}

TEST(TraceDataflowTest, IsTheGraphOfACall) {
  const DataflowGraph graph = DataflowOf(OneCall(), 0);
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
  EXPECT_EQ(Analyse(DataflowOf(OneCall(), 0)), (GraphInfo{.fwd_mem_in = 30,
                                                          .fwd_mem_tmp = 40,
                                                          .bwd_mem_tmp = 80,
                                                          .bwd_mem_out = 90}));
}

TEST(TraceDataflowTest, WithoutABackwardHasNoBackwardNodes) {
  Trace trace = OneCall();
  trace.calls[0].backward_start = kNever;
  trace.calls[0].backward_end = kNever;
  const DataflowGraph graph = DataflowOf(trace, 0);
  EXPECT_EQ(graph.nodes.size(), 6u);
  EXPECT_EQ(Analyse(graph).bwd_mem_out, 0);
}

}  // namespace
}  // namespace acplan::graph
