#include "graph/joint/joint_graph.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "graph/base/file_io.h"
#include "graph/base/input_error.h"
#include "tests/graph/document_edits.h"
#include "tests/graph/test_files.h"
#include "tests/support/random_joint.h"

namespace acplan::graph {
namespace {

using nlohmann::json;
using test_support::RandomJoint;
using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using enum JointStage;

json SmallJointGraph() { return json::parse(ReadFile(ACPLAN_SEED_JOINT)); }

std::string JointErrorOf(const std::string& text) {
  try {
    ParseJointGraph(text, "g.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(JointGraph, ReadsEveryField) {
  const JointGraph graph = ReadJointGraph(ACPLAN_SEED_JOINT);
  EXPECT_EQ(graph.model, (ModelInfo{"small", "Net", 8, 16, "fp32", ""}));
  EXPECT_EQ(graph.held_bytes, 100);
  ASSERT_EQ(graph.buffers.size(), 12u);
  EXPECT_EQ(graph.buffers[0], (JointBuffer{"w", 10, true, false}));
  EXPECT_EQ(graph.buffers[1], (JointBuffer{"x", 4, true, false}));
  EXPECT_EQ(graph.buffers[2], (JointBuffer{"t", 3, true, true}));
  EXPECT_EQ(graph.buffers[4], (JointBuffer{"h", 20, true, false, false}));
  EXPECT_EQ(graph.buffers[6], (JointBuffer{"m", 5, false, false}));
  ASSERT_EQ(graph.nodes.size(), 8u);
  EXPECT_EQ(
      graph.nodes[0],
      (JointNode{"seed", "inductor_seeds", kForward, 0.5, {}, {3}, false, 0}));
  EXPECT_EQ(
      graph.nodes[1],
      (JointNode{"mm", "aten.mm.default", kForward, 4, {0, 1}, {4}, true, 16}));
  EXPECT_EQ(graph.nodes[2],
            (JointNode{"drop", "", kForward, 1, {4, 3}, {5, 6}, true, 0}));
  EXPECT_EQ(graph.nodes[4],
            (JointNode{"scale", "", kEither, 1, {4}, {8}, true, 0}));
  EXPECT_EQ(graph.nodes[7],
            (JointNode{"mm_b", "", kBackward, 3, {10, 1}, {11}, true, 5}));
  EXPECT_THAT(graph.forward_outputs, ElementsAre(7));
  EXPECT_THAT(graph.backward_outputs, ElementsAre(11));
}

TEST(JointGraph, AcceptsLegalOddities) {
  const std::vector<Edit> edits = {
      {"/model", ""},
      {"/model", "null"},
      {"/held_bytes", ""},
      {"/held_bytes", "null"},
      {"/held_bytes", "9007199254740992"},
      {"/buffers/0/bytes", "0"},
      {"/buffers/0/bytes", "1e9"},
      {"/buffers/0/keep", "null"},
      {"/buffers/0/from", "null"},
      {"/buffers/0/from", "\"forward\""},
      {"/buffers/0/name", "\"mm\""},  // nodes have names of their own
      {"/buffers/0/shape", "[1]"},
      {"/nodes/0/op", ""},
      {"/nodes/0/op", "null"},
      {"/nodes/0/ms", "0"},
      {"/nodes/0/ms", "9e14"},
      {"/nodes/0/again", "null"},
      {"/nodes/0/reads", "[1, 0]"},
      {"/nodes/1/scratch", "null"},
      {"/nodes/3/stage", "\"forward\""},
      {"/nodes/7/makes", "[11]"},
      {"/forward_outputs", "[]"},
      {"/forward_outputs", "[7, 0, 4, 6]"},
      {"/backward_outputs", "[]"},
      {"/backward_outputs", "[11, 2, 8, 4, 0]"},
  };
  for (const Edit& edit : edits) {
    EXPECT_EQ(JointErrorOf(Changed(SmallJointGraph(), edit).dump()), "accepted")
        << edit.pointer << " = " << edit.value;
  }
}

TEST(JointGraph, WhatIsMissingIsTheDefault) {
  const JointGraph graph = ParseJointGraph(
      R"({"format": "acplan.graph", "version": 1,
          "buffers": [{"name": "b", "bytes": 1}],
          "nodes": [{"name": "n", "stage": "either", "ms": 0, "reads": [],
                     "makes": [0]}],
          "forward_outputs": [], "backward_outputs": []})",
      "g.json");
  EXPECT_EQ(graph.model, ModelInfo());
  EXPECT_EQ(graph.held_bytes, 0);
  EXPECT_TRUE(graph.buffers[0].may_keep);
  EXPECT_TRUE(graph.buffers[0].may_move);
  EXPECT_FALSE(graph.buffers[0].is_from_backward);
  EXPECT_EQ(graph.nodes[0].op, "");
  EXPECT_TRUE(graph.nodes[0].may_run_again);
  EXPECT_EQ(graph.nodes[0].scratch_bytes, 0);
}

std::vector<BadRow> BadJointRows() {
  return {
      {{"/format", ""}, "", "the key \"format\"", "none"},
      {{"/format", "\"acplan.dataflow\""},
       "format",
       "\"acplan.graph\"",
       "\"acplan.dataflow\""},
      {{"/version", ""}, "", "the key \"version\"", "none"},
      {{"/version", "2"}, "version", "1", "2"},
      {{"/model", "3"}, "model", "object", "3"},
      {{"/model/batch", "\"8\""}, "model.batch", "whole number", "\"8\""},
      {{"/held_bytes", "-1"}, "held_bytes", "bytes", "-1"},
      {{"/held_bytes", "9007199254740993"},
       "held_bytes",
       "bytes",
       "9007199254740993"},
      {{"/buffers", ""}, "", "the key \"buffers\"", "none"},
      {{"/buffers", "{}"}, "buffers", "array", "an object"},
      {{"/nodes", ""}, "", "the key \"nodes\"", "none"},
      {{"/nodes", "7"}, "nodes", "array", "7"},
      {{"/forward_outputs", ""}, "", "the key \"forward_outputs\"", "none"},
      {{"/backward_outputs", ""}, "", "the key \"backward_outputs\"", "none"},
  };
}

std::vector<BadRow> BadBuffers() {
  const std::string origins = "one of forward, backward";
  return {
      {{"/buffers/3", "7"}, "buffers[3]", "object", "7"},
      {{"/buffers/3/name", ""}, "buffers[3]", "the key \"name\"", "none"},
      {{"/buffers/3/name", "3"}, "buffers[3].name", "string", "3"},
      {{"/buffers/3/name", "\"\""}, "buffers[3].name", "a name", "\"\""},
      {{"/buffers/3/name", "\"w\""},
       "buffers[3].name",
       "a name that no other one has",
       "\"w\""},
      {{"/buffers/3/bytes", ""}, "buffers[3]", "the key \"bytes\"", "none"},
      {{"/buffers/3/bytes", "null"}, "buffers[3].bytes", "bytes", "null"},
      {{"/buffers/3/bytes", "-1"}, "buffers[3].bytes", "bytes", "-1"},
      {{"/buffers/3/bytes", "1.5"}, "buffers[3].bytes", "bytes", "1.5"},
      {{"/buffers/3/bytes", "\"1\""}, "buffers[3].bytes", "bytes", "\"1\""},
      {{"/buffers/3/bytes", "9007199254740992"},
       "buffers",
       "at most 2^53 bytes in all",
       "more"},
      {{"/buffers/3/keep", "1"}, "buffers[3].keep", "true or false", "1"},
      {{"/buffers/3/from", "true"}, "buffers[3].from", "string", "true"},
      {{"/buffers/0/from", "\"either\""},
       "buffers[0].from",
       origins,
       "\"either\""},
  };
}

std::vector<BadRow> BadNodes() {
  const std::string stages = "one of forward, either, backward";
  const std::string index = "whole number from 0 to 11";
  return {
      {{"/nodes/3", "7"}, "nodes[3]", "object", "7"},
      {{"/nodes/3/name", ""}, "nodes[3]", "the key \"name\"", "none"},
      {{"/nodes/3/name", "\"\""}, "nodes[3].name", "a name", "\"\""},
      {{"/nodes/3/name", "\"mm\""},
       "nodes[3].name",
       "a name that no other one has",
       "\"mm\""},
      {{"/nodes/3/op", "3"}, "nodes[3].op", "string", "3"},
      {{"/nodes/3/stage", ""}, "nodes[3]", "the key \"stage\"", "none"},
      {{"/nodes/3/stage", "0"}, "nodes[3].stage", "string", "0"},
      {{"/nodes/3/stage", "\"loss\""}, "nodes[3].stage", stages, "\"loss\""},
      {{"/nodes/3/ms", ""}, "nodes[3]", "the key \"ms\"", "none"},
      {{"/nodes/3/ms", "-1"}, "nodes[3].ms", "number", "-1"},
      {{"/nodes/3/ms", "null"}, "nodes[3].ms", "number", "null"},
      {{"/nodes/3/ms", "1e15"}, "nodes", "at most 10^15 ms in all", "more"},
      {{"/nodes/3/reads", ""}, "nodes[3]", "the key \"reads\"", "none"},
      {{"/nodes/3/reads", "5"}, "nodes[3].reads", "array", "5"},
      {{"/nodes/3/reads/0", "\"y\""}, "nodes[3].reads[0]", index, "\"y\""},
      {{"/nodes/3/reads/0", "-1"}, "nodes[3].reads[0]", index, "-1"},
      {{"/nodes/3/reads/0", "12"}, "nodes[3].reads[0]", index, "12"},
      {{"/nodes/3/reads", "[5, 5]"},
       "nodes[3].reads[1]",
       "each buffer once",
       "5"},
      {{"/nodes/3/makes", ""}, "nodes[3]", "the key \"makes\"", "none"},
      {{"/nodes/3/makes/0", "1.5"}, "nodes[3].makes[0]", index, "1.5"},
      {{"/nodes/3/makes", "[7, 7]"},
       "nodes[3].makes[1]",
       "each buffer once",
       "7"},
      {{"/nodes/3/again", "\"no\""},
       "nodes[3].again",
       "true or false",
       "\"no\""},
      {{"/nodes/3/scratch", "-4"}, "nodes[3].scratch", "bytes", "-4"},
      {{"/nodes/3/scratch", "0.5"}, "nodes[3].scratch", "bytes", "0.5"},
  };
}

std::vector<BadRow> BadOrders() {
  const std::string returned = "a buffer that the pass makes or is given";
  return {
      // It reads its own result, or that of a later node.
      {{"/nodes/3/reads/0", "7"},
       "nodes[3].reads[0]",
       "a buffer made before",
       "7"},
      {{"/nodes/1/reads/1", "5"},
       "nodes[1].reads[1]",
       "a buffer made before",
       "5"},
      {{"/nodes/3/makes/0", "4"},
       "nodes[3].makes[0]",
       "a buffer that no other node makes",
       "4"},
      {{"/nodes/5",
        R"({"name": "loss_b", "stage": "backward", "ms": 1, "reads": [5],
            "makes": [9, 2]})"},
       "nodes[5].makes[1]",
       "a buffer that does not come with backward",
       "2"},
      {{"/nodes/3/reads/0", "2"},
       "nodes[3].reads[0]",
       "a buffer that a node of stage forward may read",
       "2"},
      {{"/nodes/4/reads/0", "2"},
       "nodes[4].reads[0]",
       "a buffer that a node of stage either may read",
       "2"},
      {{"/nodes/1/stage", "\"either\""},
       "nodes[2].reads[0]",
       "a buffer that a node of stage forward may read",
       "4"},
      {{"/nodes/1/stage", "\"backward\""},
       "nodes[2].reads[0]",
       "a buffer that a node of stage forward may read",
       "4"},
      {{"/forward_outputs/0", "12"},
       "forward_outputs[0]",
       "whole number from 0 to 11",
       "12"},
      {{"/forward_outputs", "[7, 7]"},
       "forward_outputs[1]",
       "each buffer once",
       "7"},
      {{"/forward_outputs/0", "8"}, "forward_outputs[0]", returned, "8"},
      {{"/forward_outputs/0", "11"}, "forward_outputs[0]", returned, "11"},
      {{"/forward_outputs/0", "2"}, "forward_outputs[0]", returned, "2"},
      {{"/backward_outputs/0", "true"},
       "backward_outputs[0]",
       "whole number",
       "true"},
  };
}

TEST(JointGraph, SaysWhatIsWrongWhere) {
  int rows = 0;
  for (const auto& bad :
       {BadJointRows(), BadBuffers(), BadNodes(), BadOrders()}) {
    for (const BadRow& row : bad) {
      EXPECT_THAT(JointErrorOf(Changed(SmallJointGraph(), row.edit).dump()),
                  ComplainsOf("g.json", row))
          << row.edit.pointer << " = " << row.edit.value;
      ++rows;
    }
  }
  EXPECT_GE(rows, 60);
}

TEST(JointGraph, RefusesWhatIsNoGraph) {
  for (const char* text : {"", "null", "[]", "3", "\"acplan.graph\"", "{}",
                           "[1,", "{\"format\":NaN}", "{\"version\":1e999}"}) {
    EXPECT_THAT(JointErrorOf(text),
                AllOf(StartsWith("g.json: "), HasSubstr("expected "),
                      HasSubstr("found "), Not(HasSubstr("\n"))))
        << text;
  }
}

TEST(JointGraph, ReadsTies) {
  std::mt19937 random(2);
  for (int round = 0; round < 100; ++round) {
    const JointGraph graph = test_support::RandomRuns(random, {}, 3);
    const std::string text = ToJson(graph);
    ASSERT_EQ(JointErrorOf(text), "accepted") << text;
    ASSERT_EQ(ParseJointGraph(text, "g.json"), graph) << text;
  }
}

TEST(JointGraph, RefusesTies) {
  const std::vector<BadRow> rows = {
      {{"/nodes/0/tied_to", "0"}, "nodes[0].tied_to", "an earlier node", "0"},
      {{"/nodes/1/tied_to", "1"}, "nodes[1].tied_to", "0", "1"},
      {{"/nodes/1/tied_to", "-1"}, "nodes[1].tied_to", "0", "-1"},
      {{"/nodes/1/tied_to", "\"seed\""}, "nodes[1].tied_to", "0", "\"seed\""},
      {{"/nodes/2/tied_to", "1"},
       "nodes[2].tied_to",
       "a node that makes as many buffers, which may be kept alike",
       "1"},
  };
  for (const BadRow& row : rows) {
    EXPECT_THAT(JointErrorOf(Changed(SmallJointGraph(), row.edit).dump()),
                ComplainsOf("g.json", row))
        << row.edit.pointer << " = " << row.edit.value;
  }
  EXPECT_EQ(JointErrorOf(
                Changed(SmallJointGraph(), {"/nodes/7/tied_to", "1"}).dump()),
            "g.json: nodes[7].tied_to: expected none of a node of stage "
            "backward");
  json graph = SmallJointGraph();
  graph["nodes"][1]["tied_to"] = 0;
  EXPECT_EQ(JointErrorOf(graph.dump()), "accepted");
  graph["nodes"][4]["tied_to"] = 1;
  EXPECT_EQ(JointErrorOf(graph.dump()),
            "g.json: nodes[4].tied_to: expected a node that is not tied "
            "itself, found 1");
}

TEST(JointGraph, RefusesMoreResultsThanASubsetHas) {
  for (const JointStage stage : {kForward, kEither, kBackward}) {
    JointGraph graph{.nodes = {{.name = "split", .stage = stage}}};
    for (int32_t b = 0; b < 64; ++b) {
      graph.buffers.push_back({.name = std::to_string(b)});
      graph.nodes[0].makes.push_back(b);
    }
    EXPECT_EQ(JointErrorOf(ToJson(graph)), "accepted");
    graph.buffers.push_back({.name = "more"});
    graph.nodes[0].makes.push_back(64);
    EXPECT_EQ(JointErrorOf(ToJson(graph)),
              stage == kBackward
                  ? "accepted"
                  : "g.json: nodes[0].makes: expected at most 64 "
                    "buffers, found more");
  }
}

TEST(JointGraph, NamesTheFileItRead) {
  const TemporaryFolder folder;
  PutBytes(folder.path() / "bad.json", "{}");
  try {
    ReadJointGraph(folder.path() / "bad.json");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                StartsWith((folder.path() / "bad.json").string() + ": "));
  }
}

TEST(JointGraphToJson, WritesOneBufferAndOneNodeALine) {
  const std::string text = ToJson(ReadJointGraph(ACPLAN_SEED_JOINT));
  for (const char* line :
       {"\n{\"name\":\"x\",\"bytes\":4},\n",
        "\n{\"name\":\"t\",\"bytes\":3,\"from\":\"backward\"},\n",
        "\n{\"name\":\"m\",\"bytes\":5,\"keep\":false},\n",
        "\n{\"name\":\"drop\",\"stage\":\"forward\",\"ms\":1.0,"
        "\"reads\":[4,3],\"makes\":[5,6]},\n",
        "\n{\"name\":\"mm_b\",\"stage\":\"backward\",\"ms\":3.0,"
        "\"reads\":[10,1],\"makes\":[11],\"scratch\":5}\n],\n"
        "\"forward_outputs\":[7],\n\"backward_outputs\":[11]\n}\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(JointGraphToJson, RoundTripsThroughFiles) {
  const JointGraph graph = ReadJointGraph(ACPLAN_SEED_JOINT);
  const TemporaryFolder folder;
  for (const char* name : {"g.json", "g.json.gz"}) {
    WriteFile(folder.path() / name, ToJson(graph));
    EXPECT_EQ(ReadJointGraph(folder.path() / name), graph);
  }
}

TEST(JointGraphToJson, RoundTripsRandomGraphs) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const int nodes = static_cast<int>(random() % 20) + 1;
    const JointGraph graph =
        RandomJoint(random, {.forward = nodes, .backward = nodes});
    const std::string text = ToJson(graph);
    ASSERT_EQ(JointErrorOf(text), "accepted") << text;
    ASSERT_EQ(ParseJointGraph(text, "g.json"), graph) << text;
  }
}

}  // namespace
}  // namespace acplan::graph
