#include "graph/dataflow/dataflow_analysis.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>

#include "tests/support/random_dataflow.h"
#include "tests/support/repetitions.h"

namespace acplan::graph {
namespace {

using enum DataflowStage;
using test_support::Enough;
using test_support::RandomDataflow;
using test_support::Repetitions;

// Computes the sums by the rules word by word, with sets and scans: quadratic.
GraphInfo ByTheRules(const DataflowGraph& graph) {
  const int count = static_cast<int>(graph.nodes.size());
  const auto users_of = [&](int k) {
    std::set<int> users;
    for (int user = 0; user < count; ++user) {
      const auto& inputs = graph.nodes[user].inputs;
      if (std::ranges::find(inputs, k) != inputs.end()) users.insert(user);
    }
    return users;
  };
  GraphInfo info;
  std::map<int, int> live;
  for (int k = 0; k < count; ++k) {
    const DataflowNode& node = graph.nodes[k];
    if (node.flops) {
      if (node.stage == kBackward)
        info.bwd_flop += *node.flops;
      else
        info.fwd_flop += *node.flops;
    }
    const std::set<int> users = users_of(k);
    const bool has_loss_user = std::ranges::any_of(
        users, [&](int user) { return graph.nodes[user].stage == kLoss; });
    if (node.saved && !has_loss_user) {
      if (node.stage == kPlaceholder) info.fwd_mem_in += node.bytes;
      if (node.stage == kForward) info.fwd_mem_tmp += node.bytes;
    } else if (node.stage == kBackward) {
      if (!users.empty()) {
        live[k] = static_cast<int>(users.size());
        int64_t in_use = 0;
        for (const auto& [other, uses] : live)
          if (uses > 0) in_use += graph.nodes[other].bytes;
        info.bwd_mem_tmp = std::max(info.bwd_mem_tmp, in_use);
        for (const int input :
             std::set<int>(node.inputs.begin(), node.inputs.end()))
          if (live.contains(input)) --live[input];
      } else {
        info.bwd_mem_out += node.bytes;
      }
    }
  }
  return info;
}

TEST(Analyse, OfNothingIsNothing) {
  EXPECT_EQ(Analyse(DataflowGraph()), GraphInfo());
}

TEST(Analyse, OfASmallGraphIsWhatAHandFinds) {
  const DataflowGraph graph = ReadDataflowGraph(ACPLAN_SEED_DATAFLOW);
  // Live before each node's releases: gl 4; gl gy 20; gl gy gh 80; then gv and
  // gw are gradients, gs is skipped, and with gt it is 90.
  EXPECT_EQ(Analyse(graph), (GraphInfo{.fwd_flop = 1503,
                                       .bwd_flop = 800,
                                       .fwd_mem_in = 140,
                                       .fwd_mem_tmp = 60,
                                       .bwd_mem_tmp = 90,
                                       .bwd_mem_out = 164}));
  EXPECT_EQ(ByTheRules(graph), Analyse(graph));
}

TEST(Analyse, WhatALossReadsIsNotSaved) {
  DataflowGraph graph;
  graph.nodes = {{"p", kPlaceholder, true, 1, {}},
                 {"f", kForward, true, 2, {}},
                 {"b", kBackward, true, 4, {}},
                 {"s", kLoss, true, 8, {}}};
  EXPECT_EQ(Analyse(graph), (GraphInfo{.fwd_mem_in = 1, .fwd_mem_tmp = 2}));
  graph.nodes.push_back({"l", kLoss, false, 16, {0, 1, 2, 3}});
  // Then the backward node is one like any other, and has a user.
  EXPECT_EQ(Analyse(graph), (GraphInfo{.bwd_mem_tmp = 4}));
}

TEST(Analyse, ThePeakIsBeforeTheRelease) {
  DataflowGraph graph;
  graph.nodes = {{"a", kBackward, false, 10, {}},
                 {"b", kBackward, false, 1, {0}},
                 {"c", kBackward, false, 5, {1}},
                 {"d", kBackward, false, 3, {2}}};
  EXPECT_EQ(Analyse(graph), (GraphInfo{.bwd_mem_tmp = 11, .bwd_mem_out = 3}));
}

TEST(Analyse, OnlyCountedBackwardNodesRelease) {
  for (const DataflowStage stage : {kPlaceholder, kForward, kLoss, kBackward}) {
    DataflowGraph graph;
    graph.nodes = {{"a", kBackward, false, 10, {}},
                   {"user", stage, stage == kBackward, 100, {0}},
                   {"b", kBackward, false, 7, {1}},
                   {"end", kBackward, false, 1, {0, 2}}};
    EXPECT_EQ(Analyse(graph), (GraphInfo{.bwd_mem_tmp = 17, .bwd_mem_out = 1}))
        << ToString(stage);
  }
}

TEST(Analyse, AGradientReleasesNothing) {
  DataflowGraph graph;
  graph.nodes = {{"a", kBackward, false, 10, {}},
                 {"gradient", kBackward, false, 2, {0}},
                 {"b", kBackward, false, 5, {}},
                 {"end", kBackward, false, 1, {2}}};
  EXPECT_EQ(Analyse(graph), (GraphInfo{.bwd_mem_tmp = 15, .bwd_mem_out = 3}));
}

TEST(Analyse, FlopsAreOfTheStageSavedOrNot) {
  DataflowGraph graph;
  graph.nodes = {{"p", kPlaceholder, true, 0, {}, 1},
                 {"f", kForward, true, 0, {}, 10},
                 {"l", kLoss, false, 0, {}, 100},
                 {"b", kBackward, false, 0, {}, 1000},
                 {"s", kBackward, true, 0, {}, 10000}};
  EXPECT_EQ(Analyse(graph), (GraphInfo{.fwd_flop = 111, .bwd_flop = 11000}));
}

TEST(Analyse, IsWhatTheRulesSayOnRandomGraphs) {
  std::mt19937 random(1);
  int tight = 0;
  for (int round = 0; round < Repetitions(3000); ++round) {
    const DataflowGraph graph =
        RandomDataflow(random, static_cast<int>(random() % 60));
    const GraphInfo info = Analyse(graph);
    ASSERT_EQ(info, ByTheRules(graph)) << ToJson(graph);
    int64_t used_bytes = 0;
    for (const DataflowNode& node : graph.nodes)
      if (node.stage == kBackward) used_bytes += node.bytes;
    // Cases in which something is released before the peak.
    if (info.fwd_mem_in > 0 && info.fwd_mem_tmp > 0 &&
        info.bwd_mem_tmp + info.bwd_mem_out < used_bytes) {
      ++tight;
    }
  }
  EXPECT_GT(tight, Enough(1000));
}

// A scan of the live set at each node would take hours.
TEST(Analyse, TakesLinearTime) {
  constexpr int kNodes = 1'000'000;
  DataflowGraph graph;
  for (int k = 0; k < kNodes; ++k) {
    graph.nodes.push_back(
        {.name = std::to_string(k), .stage = kBackward, .bytes = 2});
    if (k > 0) graph.nodes.back().inputs = {k - 1};
    if (k > 2) graph.nodes.back().inputs.push_back(k / 2);
  }
  const GraphInfo info = Analyse(graph);
  EXPECT_EQ(info.bwd_mem_out, 2);
  EXPECT_GT(info.bwd_mem_tmp, kNodes / 2);
}

}  // namespace
}  // namespace acplan::graph
