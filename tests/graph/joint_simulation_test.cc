#include "graph/joint/joint_simulation.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/joint/joint_graph.h"

// The graph of tests/fuzz/seeds/small_joint.json, by hand:
//
//   held 100, w 10, x 4                      114 bytes during the whole step
//   seed   forward   () -> s 1               may not run again
//   mm     forward   (w, x) -> h 20          scratch 16, 4 ms
//   drop   forward   (h, s) -> y 7, m 5      m may not be kept, 1 ms
//   loss   forward   (y) -> l 1              returned
//   scale  either    (h) -> e 2
//   loss_b backward  (t 3, y) -> gy 6        t comes with backward
//   drop_b backward  (gy, m, e) -> gh 8
//   mm_b   backward  (gh, x) -> gw 9         scratch 5, returned

namespace acplan::graph {
namespace {

using ::testing::ElementsAre;

JointGraph Small() { return ReadJointGraph(ACPLAN_SEED_JOINT); }

std::vector<char> Keeping(const JointGraph& graph,
                          const std::set<std::string>& names) {
  std::vector<char> is_kept;
  for (const JointBuffer& buffer : graph.buffers)
    is_kept.push_back(names.contains(buffer.name));
  return is_kept;
}

// Returns the steps in order; "|" stands before the backward pass, "again "
// before a node that runs again.
std::vector<std::string> Steps(const JointGraph& graph, const JointRun& run) {
  std::vector<std::string> steps;
  bool is_backward = false;
  for (const JointRun::Step& step : run.steps) {
    if (step.is_backward && !is_backward) steps.emplace_back("|");
    is_backward = step.is_backward;
    steps.push_back((step.is_again ? "again " : "") +
                    graph.nodes[step.node].name);
  }
  return steps;
}

std::string KeptNames(const JointGraph& graph,
                      const std::vector<char>& is_kept) {
  std::string names;
  for (size_t b = 0; b < is_kept.size(); ++b)
    if (is_kept[b]) names += graph.buffers[b].name;
  return names;
}

TEST(JointSimulation, KeepsAllThatBackwardReads) {
  const JointGraph graph = Small();
  const JointSimulator simulator(graph);
  // m may not be kept: drop runs again, and its inputs are there.
  const std::vector<char> all = simulator.AllKept();
  EXPECT_EQ(KeptNames(graph, all), "shye");
  const JointRun run = simulator.Run(all);
  EXPECT_EQ(run.is_kept, all);
  EXPECT_THAT(Steps(graph, run),
              ElementsAre("seed", "mm", "drop", "loss", "scale", "|", "loss_b",
                          "again drop", "drop_b", "mm_b"));
  EXPECT_THAT(run.live_bytes, ElementsAre(114 + 1,               // s
                                          114 + 1 + 20 + 16,     // s h
                                          114 + 1 + 20 + 7 + 5,  // s h y m
                                          114 + 1 + 20 + 7 + 1,  // s h y l
                                          114 + 1 + 20 + 7 + 1 + 2,
                                          // s h y l e, t gy
                                          114 + 31 + 3 + 6,
                                          // s h l e, gy m and a second y
                                          114 + 24 + 6 + 5 + 7,
                                          // l e, gy m gh
                                          114 + 3 + 6 + 5 + 8,
                                          // l, gh gw
                                          114 + 1 + 8 + 9 + 5));
  EXPECT_EQ(run.peak_bytes, 156);
  EXPECT_EQ(run.peak_step, 6);
  EXPECT_EQ(run.kept_bytes, 1 + 20 + 7 + 2);
  EXPECT_EQ(run.recompute_ms, 1);
}

TEST(JointSimulation, MakesAgainWhatIsNotKept) {
  const JointGraph graph = Small();
  const JointRun run = JointSimulator(graph).Run(Keeping(graph, {"s"}));
  EXPECT_EQ(KeptNames(graph, run.is_kept), "s");
  // Only backward runs scale, which costs nothing more; h is made again once.
  EXPECT_THAT(Steps(graph, run), ElementsAre("seed", "mm", "drop", "loss", "|",
                                             "again mm", "again drop", "loss_b",
                                             "again scale", "drop_b", "mm_b"));
  EXPECT_THAT(run.live_bytes, ElementsAre(114 + 1,               // s
                                          114 + 1 + 20 + 16,     // s h
                                          114 + 1 + 20 + 7 + 5,  // s h y m
                                          114 + 1 + 7 + 1,       // s y l
                                          114 + 2 + 3 + 20 + 16,
                                          // s l, t h y m
                                          114 + 2 + 3 + 20 + 7 + 5,
                                          // l, t h y m gy
                                          114 + 1 + 3 + 20 + 7 + 5 + 6,
                                          // l, h m gy e
                                          114 + 1 + 20 + 5 + 6 + 2,
                                          // l, m gy e gh
                                          114 + 1 + 5 + 6 + 2 + 8,
                                          // l, gh gw
                                          114 + 1 + 8 + 9 + 5));
  EXPECT_EQ(run.peak_bytes, 156);
  EXPECT_EQ(run.peak_step, 6);
  EXPECT_EQ(run.kept_bytes, 1);
  EXPECT_EQ(run.recompute_ms, 4 + 1);
}

TEST(JointSimulation, AnEitherNodeRunsTwiceWhereForwardHasToRunIt) {
  JointGraph graph = Small();
  // A second node of stage either reads the result of the first, and backward
  // reads both.
  graph.buffers.push_back({.name = "f", .bytes = 2});
  graph.nodes.insert(graph.nodes.begin() + 5, {.name = "shift",
                                               .stage = JointStage::kEither,
                                               .ms = 8,
                                               .reads = {8},
                                               .makes = {12}});
  graph.nodes[7].reads.push_back(12);
  const JointSimulator simulator(graph);
  const JointRun run = simulator.Run(Keeping(graph, {"s", "y", "h", "f"}));
  EXPECT_THAT(
      Steps(graph, run),
      ElementsAre("seed", "mm", "drop", "loss", "scale", "shift", "|", "loss_b",
                  "again drop", "again scale", "drop_b", "mm_b"));
  EXPECT_EQ(run.recompute_ms, 1 + 1);
  // If neither is kept, backward runs both, and forward none.
  EXPECT_EQ(simulator.Run(Keeping(graph, {"s", "y", "h"})).recompute_ms, 1);
}

TEST(JointSimulation, WhatBackwardDoesNotNeedIsNotKept) {
  JointGraph graph = Small();
  graph.nodes[6].reads = {9};  // neither m nor e
  const JointRun run =
      JointSimulator(graph).Run(Keeping(graph, {"s", "h", "y", "e"}));
  EXPECT_EQ(KeptNames(graph, run.is_kept), "y");
  EXPECT_EQ(run.kept_bytes, 7);
  EXPECT_EQ(run.recompute_ms, 0);
  EXPECT_THAT(Steps(graph, run), ElementsAre("seed", "mm", "drop", "loss", "|",
                                             "loss_b", "drop_b", "mm_b"));
}

TEST(JointSimulation, RunsAgainWhatOnlyTheEndNeeds) {
  JointGraph graph = Small();
  graph.nodes[6].reads = {9, 6};
  graph.backward_outputs = {11, 8};
  const JointRun run =
      JointSimulator(graph).Run(Keeping(graph, {"s", "h", "y"}));
  EXPECT_THAT(Steps(graph, run),
              ElementsAre("seed", "mm", "drop", "loss", "|", "loss_b",
                          "again drop", "drop_b", "mm_b", "again scale"));
  // l, gw, h, e
  EXPECT_EQ(run.live_bytes.back(), 114 + 1 + 9 + 20 + 2);
}

TEST(JointSimulation, OfNothingIsWhatIsHeld) {
  const JointGraph graph{.held_bytes = 7};
  const JointRun run = JointSimulator(graph).Run({});
  EXPECT_EQ(run.peak_bytes, 7);
  EXPECT_EQ(run.peak_step, -1);
  EXPECT_TRUE(run.steps.empty());
}

TEST(JointSimulation, KnowsMakersAndOutputs) {
  const JointGraph graph = Small();
  const JointSimulator simulator(graph);
  EXPECT_EQ(simulator.MakerOf(0), -1);
  EXPECT_EQ(simulator.MakerOf(6), 2);
  EXPECT_TRUE(simulator.IsForwardOutput(7));
  EXPECT_FALSE(simulator.IsForwardOutput(11));
}

std::string JointRefusalOf(const JointGraph& graph,
                           const std::set<std::string>& names) {
  try {
    JointSimulator(graph).Run(Keeping(graph, names));
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JointSimulation, RefusesWhatTheRulesForbid) {
  const JointGraph graph = Small();
  EXPECT_EQ(
      JointRefusalOf(graph, {}),
      "node 'seed': it may not run again, but its results are needed and not "
      "kept");
  for (const std::string name : {"m", "w", "x", "t", "gy", "gw"}) {
    EXPECT_EQ(JointRefusalOf(graph, {"s", name}),
              "buffer '" + name + "': expected one that may be kept");
  }
  // The results that forward returns are there in any case.
  EXPECT_EQ(JointRefusalOf(graph, {"s", "l"}), "accepted");
}

}  // namespace
}  // namespace acplan::graph
