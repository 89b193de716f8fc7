#include "graph/dataflow/dataflow_graph.h"

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
#include "tests/support/random_dataflow.h"

namespace acplan::graph {
namespace {

using nlohmann::json;
using test_support::RandomDataflow;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using enum DataflowStage;

json SmallDataflow() { return json::parse(ReadFile(ACPLAN_SEED_DATAFLOW)); }

std::string DataflowErrorOf(const std::string& text) {
  try {
    ParseDataflowGraph(text, "g.json");
  } catch (const InputError& error) {
    return error.what();
  }
  return "accepted";
}

TEST(DataflowGraph, ReadsEveryField) {
  const DataflowGraph graph = ReadDataflowGraph(ACPLAN_SEED_DATAFLOW);
  EXPECT_EQ(graph.model, (ModelInfo{"small", "Net", 8, 16, "fp32", ""}));
  ASSERT_EQ(graph.nodes.size(), 15u);
  EXPECT_EQ(graph.nodes[0],
            (DataflowNode{"x", kPlaceholder, true, 100, {}, {}}));
  EXPECT_EQ(graph.nodes[2], (DataflowNode{"v", kPlaceholder, false, 24}));
  // Nested outputs are one sum, and an input given twice is one.
  EXPECT_EQ(graph.nodes[4],
            (DataflowNode{"y", kForward, true, 16, {3, 2}, 500}));
  EXPECT_EQ(graph.nodes[6], (DataflowNode{"l", kLoss, false, 4, {4}, 3}));
  EXPECT_EQ(graph.nodes[13],
            (DataflowNode{"gt", kBackward, false, 10, {11, 7, 9}, {}}));
}

TEST(DataflowGraph, AcceptsLegalOddities) {
  const std::vector<Edit> edits = {
      {"/model", ""},
      {"/model", "null"},
      {"/model/name", ""},
      {"/nodes", "[]"},
      {"/nodes/0/saved", ""},
      {"/nodes/0/saved", "null"},
      {"/nodes/0/inputs", "[]"},
      {"/nodes/0/flops", "0"},
      {"/nodes/0/flops", "null"},
      {"/nodes/0/flops", "9007199254740992"},
      {"/nodes/0/bytes", "0"},
      {"/nodes/0/bytes", "1e9"},
      {"/nodes/0/bytes", "[]"},
      {"/nodes/0/bytes", "[[[]],9007199254740992]"},
      {"/nodes/14/name", "\"\""},
      {"/nodes/6/stage", "\"backward\""},
      {"/nodes/14/stage", "\"placeholder\""},
      {"/nodes/14/shape", "[1]"},
  };
  for (const Edit& edit : edits) {
    EXPECT_EQ(DataflowErrorOf(Changed(SmallDataflow(), edit).dump()),
              "accepted")
        << edit.pointer << " = " << edit.value;
  }
}

std::vector<BadRow> BadDataflowRows() {
  const std::string earlier = "the name of an earlier node";
  const std::string stages = "one of placeholder, forward, loss, backward";
  return {
      {{"/format", ""}, "", "the key \"format\"", "none"},
      {{"/format", "\"acplan.trace\""},
       "format",
       "\"acplan.dataflow\"",
       "\"acplan.trace\""},
      {{"/version", ""}, "", "the key \"version\"", "none"},
      {{"/version", "2"}, "version", "1", "2"},
      {{"/nodes", ""}, "", "the key \"nodes\"", "none"},
      {{"/nodes", "{}"}, "nodes", "array", "an object"},
      {{"/model", "3"}, "model", "object", "3"},
      {{"/model/batch", "\"8\""}, "model.batch", "whole number", "\"8\""},
      {{"/nodes/3", "7"}, "nodes[3]", "object", "7"},
      {{"/nodes/3/name", ""}, "nodes[3]", "the key \"name\"", "none"},
      {{"/nodes/3/name", "3"}, "nodes[3].name", "string", "3"},
      {{"/nodes/3/name", "\"x\""},
       "nodes[3].name",
       "a name that no other node has",
       "\"x\""},
      {{"/nodes/3/stage", ""}, "nodes[3]", "the key \"stage\"", "none"},
      {{"/nodes/3/stage", "null"}, "nodes[3].stage", "string", "null"},
      {{"/nodes/3/stage", "0"}, "nodes[3].stage", "string", "0"},
      {{"/nodes/3/stage", "\"FORWARD\""},
       "nodes[3].stage",
       stages,
       "\"FORWARD\""},
      {{"/nodes/3/stage", "\"output\""},
       "nodes[3].stage",
       stages,
       "\"output\""},
      {{"/nodes/3/saved", "1"}, "nodes[3].saved", "true or false", "1"},
      {{"/nodes/3/saved", "\"yes\""},
       "nodes[3].saved",
       "true or false",
       "\"yes\""},
      {{"/nodes/3/bytes", ""}, "nodes[3]", "the key \"bytes\"", "none"},
      {{"/nodes/3/bytes", "null"}, "nodes[3].bytes", "bytes", "null"},
      {{"/nodes/3/bytes", "-1"}, "nodes[3].bytes", "bytes", "-1"},
      {{"/nodes/3/bytes", "1.5"}, "nodes[3].bytes", "bytes", "1.5"},
      {{"/nodes/3/bytes", "\"1\""}, "nodes[3].bytes", "bytes", "\"1\""},
      {{"/nodes/3/bytes", "9007199254740993"},
       "nodes[3].bytes",
       "bytes",
       "9007199254740993"},
      {{"/nodes/3/bytes", "{\"a\":1}"}, "nodes[3].bytes", "bytes", "an object"},
      {{"/nodes/4/bytes/1/2", "[-4]"},
       "nodes[4].bytes[1][2][0]",
       "bytes",
       "-4"},
      {{"/nodes/4/bytes/1/2", "9007199254740992"},
       "nodes[4].bytes[1]",
       "at most 2^53 bytes",
       "more"},
      {{"/nodes/4/bytes/0", "9007199254740990"},
       "nodes[4].bytes",
       "at most 2^53 bytes",
       "more"},
      {{"/nodes/3/inputs", ""}, "nodes[3]", "the key \"inputs\"", "none"},
      {{"/nodes/3/inputs", "\"x\""}, "nodes[3].inputs", "array", "\"x\""},
      {{"/nodes/3/inputs/1", "0"}, "nodes[3].inputs[1]", "string", "0"},
      {{"/nodes/3/inputs/1", "\"q\""}, "nodes[3].inputs[1]", earlier, "\"q\""},
      {{"/nodes/3/inputs/1", "\"h\""}, "nodes[3].inputs[1]", earlier, "\"h\""},
      {{"/nodes/3/inputs/1", "\"y\""}, "nodes[3].inputs[1]", earlier, "\"y\""},
      {{"/nodes/3/flops", "-1"}, "nodes[3].flops", "whole number", "-1"},
      {{"/nodes/3/flops", "0.5"}, "nodes[3].flops", "whole number", "0.5"},
      {{"/nodes/3/flops", "\"7\""}, "nodes[3].flops", "whole number", "\"7\""},
      {{"/nodes/3/flops", "9007199254740993"},
       "nodes[3].flops",
       "whole number",
       "9007199254740993"},
  };
}

TEST(DataflowGraph, SaysWhatIsWrongWhere) {
  for (const BadRow& row : BadDataflowRows()) {
    EXPECT_THAT(DataflowErrorOf(Changed(SmallDataflow(), row.edit).dump()),
                ComplainsOf("g.json", row))
        << row.edit.pointer << " = " << row.edit.value;
  }
}

TEST(DataflowGraph, RefusesWhatIsNoGraph) {
  for (const char* text : {"", "null", "[]", "3", "\"acplan.dataflow\"", "{}",
                           "[1,", "{\"format\":NaN}", "{\"version\":1e999}"}) {
    EXPECT_THAT(DataflowErrorOf(text),
                AllOf(StartsWith("g.json: "), HasSubstr("expected "),
                      HasSubstr("found "), Not(HasSubstr("\n"))))
        << text;
  }
}

TEST(DataflowGraph, RefusesSumsThatWouldOverflow) {
  constexpr int64_t kMost = int64_t{1} << 53;
  for (const bool of_flops : {false, true}) {
    DataflowGraph graph;
    for (int k = 0; k < 512; ++k) {
      graph.nodes.push_back({.name = std::to_string(k),
                             .bytes = of_flops ? 0 : kMost,
                             .flops = of_flops ? kMost : 0});
    }
    EXPECT_EQ(DataflowErrorOf(ToJson(graph)), "accepted");
    graph.nodes.push_back({.name = "more", .bytes = 1, .flops = 1});
    EXPECT_EQ(DataflowErrorOf(ToJson(graph)),
              std::string("g.json: nodes: expected at most 2^62 ") +
                  (of_flops ? "FLOPs" : "bytes") + " in all, found more");
  }
}

TEST(DataflowGraph, NamesTheFileItRead) {
  const TemporaryFolder folder;
  PutBytes(folder.path() / "bad.json", "{}");
  try {
    ReadDataflowGraph(folder.path() / "bad.json");
    ADD_FAILURE();
  } catch (const InputError& error) {
    EXPECT_THAT(error.what(),
                StartsWith((folder.path() / "bad.json").string() + ": "));
  }
}

TEST(DataflowGraphToJson, WritesOneNodeALine) {
  const std::string text = ToJson(ReadDataflowGraph(ACPLAN_SEED_DATAFLOW));
  for (const char* line :
       {"\n{\"name\":\"v\",\"stage\":\"placeholder\",\"saved\":false,"
        "\"bytes\":24,\"inputs\":[]},\n",
        "\n{\"name\":\"y\",\"stage\":\"forward\",\"saved\":true,"
        "\"bytes\":16,\"inputs\":[\"h\",\"v\"],\"flops\":500},\n",
        "\n{\"name\":\"gx\",\"stage\":\"backward\",\"saved\":false,"
        "\"bytes\":100,\"inputs\":[\"gt\",\"w\"]}\n]\n}\n"}) {
    EXPECT_THAT(text, HasSubstr(line));
  }
}

TEST(DataflowGraphToJson, RoundTripsThroughFiles) {
  const DataflowGraph graph = ReadDataflowGraph(ACPLAN_SEED_DATAFLOW);
  const TemporaryFolder folder;
  for (const char* name : {"g.json", "g.json.gz"}) {
    WriteFile(folder.path() / name, ToJson(graph));
    EXPECT_EQ(ReadDataflowGraph(folder.path() / name), graph);
  }
}

TEST(DataflowGraphToJson, RoundTripsRandomGraphs) {
  std::mt19937 random(1);
  for (int round = 0; round < 500; ++round) {
    const DataflowGraph graph =
        RandomDataflow(random, static_cast<int>(random() % 40));
    const std::string text = ToJson(graph);
    ASSERT_EQ(DataflowErrorOf(text), "accepted") << text;
    ASSERT_EQ(ParseDataflowGraph(text, "g.json"), graph) << text;
  }
}

}  // namespace
}  // namespace acplan::graph
