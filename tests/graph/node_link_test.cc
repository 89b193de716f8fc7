#include "graph/schedule/node_link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "graph/joint/joint_graph.h"
#include "graph/schedule/schedule_graph.h"
#include "tests/graph/test_files.h"

namespace acplan::graph {
namespace {

using nlohmann::json;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

json SmallNodeLink() { return json::parse(ReadFile(ACPLAN_SEED_NODE_LINK)); }

std::string NodeLinkErrorOf(const std::string& text) {
  try {
    ParseNodeLink(text, "g.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

std::vector<std::string> NamesOf(const ScheduleGraph& graph) {
  std::vector<std::string> names;
  for (const ScheduleNode& node : graph.nodes) names.push_back(node.name);
  return names;
}

TEST(NodeLink, ReadsEveryField) {
  const ScheduleGraph graph = ReadScheduleGraph(ACPLAN_SEED_NODE_LINK);
  EXPECT_EQ(graph.name, "small");
  EXPECT_EQ(graph.time_unit, "");
  EXPECT_EQ(graph.held_bytes, 0);
  ASSERT_EQ(graph.nodes.size(), 5u);
  EXPECT_EQ(graph.nodes[0], (ScheduleNode{"input", 1, {}, {0}}));
  EXPECT_EQ(graph.nodes[1], (ScheduleNode{"b", 5, {0}, {1}}));
  EXPECT_EQ(graph.nodes[2], (ScheduleNode{"7", 2.5, {1}, {2}}));
  EXPECT_EQ(graph.nodes[3], (ScheduleNode{"d", 2, {2, 0}, {3}}));
  EXPECT_EQ(graph.nodes[4], (ScheduleNode{"e", 1, {3, 1}, {4}}));
  EXPECT_EQ(graph.values[2], (ScheduleValue{"7", 8, 2, false}));
}

TEST(NodeLink, WhatIsTooDeepToReadIsNone) {
  json graph = SmallNodeLink();
  ASSERT_TRUE(IsNodeLink(graph.dump()));
  json deep = 0;
  for (int k = 0; k < 600; ++k) deep = json::array({std::move(deep)});
  graph["more"] = std::move(deep);
  EXPECT_FALSE(IsNodeLink(graph.dump()));
}

TEST(NodeLink, WithoutAnOrderTheFirstThatCanRunsFirst) {
  json graph = SmallNodeLink();
  graph["graph"].erase("order");
  EXPECT_THAT(NamesOf(ParseNodeLink(graph.dump(), "g.json")),
              ElementsAre("input", "b", "7", "d", "e"));
  // Two roots, then their readers in the order of links.
  EXPECT_THAT(NamesOf(ParseNodeLink(R"({"nodes": [
        {"name": "z", "cost_cpu": 0, "cost_ram": 0},
        {"name": "y", "cost_cpu": 0, "cost_ram": 0},
        {"name": "x", "cost_cpu": 0, "cost_ram": 0},
        {"name": "w", "cost_cpu": 0, "cost_ram": 0}],
        "edges": [{"source": 2, "target": 1}, {"source": 0, "target": 3},
                  {"source": 0, "target": 1}]})",
                                    "g.json")),
              ElementsAre("z", "x", "w", "y"));
}

TEST(NodeLink, SaysWhatIsWrongWhere) {
  struct Row {
    std::string pointer;
    std::string value;  // JSON; nothing: removed
    std::string error;
  };
  const std::vector<Row> rows = {
      {"/nodes", "", "g.json: expected the key \"nodes\""},
      {"/nodes", "[]",
       "g.json: nodes: expected at least one node, found an array"},
      {"/links", "", "g.json: expected one of links and edges, found none"},
      {"/edges", "[]", "g.json: expected one of links and edges, found both"},
      {"/directed", "false", "g.json: directed: expected true: links have a"},
      {"/multigraph", "true", "g.json: multigraph: expected false: each link"},
      {"/nodes/1/cost_ram", "",
       "g.json: nodes[1]: expected one of cost_ram and out_cost, found none"},
      {"/nodes/1/duration", "3",
       "g.json: nodes[1]: expected one of cost_cpu and duration, found both"},
      {"/nodes/1/cost_ram", "-1", "g.json: nodes[1].cost_ram: expected"},
      {"/nodes/1/cost_ram", "2.5", "g.json: nodes[1].cost_ram: expected"},
      {"/nodes/1/cost_cpu", "\"5\"", "g.json: nodes[1].cost_cpu: expected"},
      {"/nodes/1/cost_ram", "9007199254740992",
       "g.json: nodes: expected at most 2^53 bytes and 2^53 of time in all"},
      {"/nodes/1/id", "\"a\"",
       "g.json: nodes[1].id: expected an id that no other node has"},
      {"/nodes/1/id", "[1]",
       "g.json: nodes[1].id: expected the id of a node: a string or a whole"},
      {"/links/2/0", "", "g.json: links[2]: expected one of source and 0"},
      {"/links/2/0", "8",
       "g.json: links[2].0: expected the id of a node, found 8"},
      {"/links/0/target", "\"a\"",
       "g.json: links[0]: expected a link to another node"},
      {"/links/1", R"({"source": "a", "target": "b"})",
       "g.json: links[1]: expected a link that occurs once"},
      {"/links/0", R"({"source": "e", "target": "b"})",
       "g.json: nodes: expected links without a cycle, found one before node "
       "b"},
      {"/graph/order/1", "\"e\"",
       "g.json: graph.order[1]: expected a node after those that it reads"},
      {"/graph/order/1", "\"a\"",
       "g.json: graph.order[1]: expected each node once"},
      {"/graph/order/4", "",
       "g.json: graph.order: expected all 5 nodes, found 4"},
      {"/graph/order", "3", "g.json: graph.order: expected"},
      {"/graph/name", "3", "g.json: graph.name: expected a string"},
  };
  for (const Row& row : rows) {
    json graph = SmallNodeLink();
    const json::json_pointer pointer(row.pointer);
    if (row.value.empty()) {
      graph =
          graph.patch(json::array({{{"op", "remove"}, {"path", row.pointer}}}));
    } else {
      graph[pointer] = json::parse(row.value);
    }
    const std::string error = NodeLinkErrorOf(graph.dump());
    EXPECT_THAT(error, HasSubstr(row.error)) << row.pointer;
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
  }
  EXPECT_THAT(NodeLinkErrorOf("{"), HasSubstr("g.json"));
  EXPECT_THAT(NodeLinkErrorOf("[]"), HasSubstr("g.json: expected an object"));
}

TEST(NodeLink, IsToldFromOtherFiles) {
  EXPECT_TRUE(IsNodeLink(ReadFile(ACPLAN_SEED_NODE_LINK)));
  EXPECT_FALSE(IsNodeLink(ReadFile(ACPLAN_SEED_JOINT)));
  EXPECT_FALSE(IsNodeLink("{"));
  EXPECT_FALSE(IsNodeLink("[]"));
}

// Returns a graph: forward makes h from the input x; backward gets t, from
// which d is made.
JointGraph SmallJoint() {
  return {.model = {"m", "", 0, 0, "", ""},
          .held_bytes = 100,
          .buffers = {{.name = "x", .bytes = 4},
                      {.name = "h", .bytes = 8},
                      {.name = "t", .bytes = 2, .is_from_backward = true},
                      {.name = "d", .bytes = 6}},
          .nodes = {{.name = "f", .ms = 3, .reads = {0}, .makes = {1}},
                    {.name = "g",
                     .stage = JointStage::kBackward,
                     .ms = 5,
                     .reads = {1, 2, 0},
                     .makes = {3},
                     .may_run_again = false,
                     .scratch_bytes = 1}},
          .forward_outputs = {1},
          .backward_outputs = {3}};
}

TEST(ToScheduleGraph, HoldsInputsAndMakesWhatComesWithBackward) {
  const ScheduleGraph graph = ToScheduleGraph(SmallJoint());
  EXPECT_EQ(graph.name, "m");
  EXPECT_EQ(graph.time_unit, "ms");
  EXPECT_EQ(graph.held_bytes, 104);
  EXPECT_THAT(graph.values, ElementsAre(ScheduleValue{"h", 8, 0, true},
                                        ScheduleValue{"t", 2, 1, false},
                                        ScheduleValue{"d", 6, 2, true}));
  EXPECT_THAT(
      graph.nodes,
      ElementsAre(ScheduleNode{"f", 3, {}, {0}, true, 0},
                  ScheduleNode{"(backward begins)", 0, {}, {1}, false, 0},
                  ScheduleNode{"g", 5, {0, 1}, {2}, false, 1}));
}

TEST(ToScheduleGraph, RefusesWhatMayNotBeKept) {
  JointGraph joint = SmallJoint();
  joint.buffers[1].may_keep = false;
  try {
    ToScheduleGraph(joint);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_STREQ(
        error.what(),
        "buffers[1].keep: expected true, of any schedule, found false");
  }
}

TEST(ReadScheduleGraph, ReadsJointGraphsAndNamesTheFile) {
  const TemporaryFolder folder;
  const std::filesystem::path path = folder.path() / "g.json";
  WriteFile(path, ToJson(SmallJoint()));
  EXPECT_EQ(ReadScheduleGraph(path), ToScheduleGraph(SmallJoint()));
  JointGraph joint = SmallJoint();
  joint.buffers[1].may_keep = false;
  WriteFile(path, ToJson(joint));
  try {
    ReadScheduleGraph(path);
    FAIL();
  } catch (const InputError& error) {
    EXPECT_EQ(std::string(error.what()),
              path.string() +
                  ": buffers[1].keep: expected true, of any schedule, found "
                  "false");
  }
}

}  // namespace
}  // namespace acplan::graph
