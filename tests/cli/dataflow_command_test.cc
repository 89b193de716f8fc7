#include <nlohmann/json.hpp>
#include <string>

#include "graph/dataflow/dataflow_analysis.h"
#include "graph/dataflow/dataflow_graph.h"
#include "tests/cli/cli_test.h"

namespace acplan::cli {

namespace {

using nlohmann::json;
using testing::HasSubstr;

constexpr char kGraph[] = ACPLAN_DATA_DIR "/dataflow/gpt2_tiny.json.gz";
constexpr char kSmallDataflow[] = R"({
  "format": "acplan.dataflow", "version": 1, "nodes": [
    {"name": "w", "stage": "placeholder", "saved": true, "bytes": 2048,
     "inputs": []},
    {"name": "y", "stage": "forward", "saved": true, "bytes": [8, [8]],
     "inputs": ["w"], "flops": 1234567},
    {"name": "l", "stage": "loss", "saved": false, "bytes": 4,
     "inputs": ["y"]},
    {"name": "a", "stage": "backward", "saved": false, "bytes": 32,
     "inputs": ["l"], "flops": 7},
    {"name": "b", "stage": "backward", "saved": false, "bytes": 64,
     "inputs": ["a", "w"]}]})";

class DataflowCommandTest : public CliTest {};

TEST_F(DataflowCommandTest, SaysWhatAGraphUses) {
  PutFile("g.json", kSmallDataflow);
  EXPECT_EQ(
      AcplanJson({"module", "dataflow", "g.json"}),
      json(
          {{"model", ""},
           {"nodes",
            {{"placeholder", 1}, {"forward", 1}, {"loss", 1}, {"backward", 2}}},
           {"saved", 2},
           {"fwd_flop", 1234567},
           {"bwd_flop", 7},
           {"fwd_mem_in", 2048},
           {"fwd_mem_tmp", 0},
           {"bwd_mem_tmp", 32},
           {"bwd_mem_out", 64}}));
  const std::string text = AcplanOut({"module", "dataflow", "g.json"});
  for (const std::string part :
       {"graph, 5 nodes: 1 placeholder, 1 forward, 1 loss, 2 backward; 2 saved",
        "1,234,567", "2.00 KiB", "64 B"}) {
    EXPECT_THAT(text, HasSubstr(part));
  }
}

TEST_F(DataflowCommandTest, WritesWhatItPrints) {
  const std::string text =
      AcplanOut({"module", "dataflow", kGraph, "-o", "info.json"});
  EXPECT_EQ(text, AcplanOut({"module", "dataflow", kGraph}));
  EXPECT_EQ(AcplanOut({"module", "dataflow", kGraph, "--json"}),
            Read("info.json"));
}

TEST_F(DataflowCommandTest, OfARealModelIsTheAnalysis) {
  const graph::DataflowGraph graph = graph::ReadDataflowGraph(kGraph);
  const graph::GraphInfo info = graph::Analyse(graph);
  const json answer = AcplanJson({"module", "dataflow", kGraph});
  EXPECT_EQ(answer["model"], "GPT2LMHeadModel");
  EXPECT_EQ(answer["fwd_flop"], info.fwd_flop);
  EXPECT_EQ(answer["bwd_flop"], info.bwd_flop);
  EXPECT_EQ(answer["fwd_mem_in"], info.fwd_mem_in);
  EXPECT_EQ(answer["fwd_mem_tmp"], info.fwd_mem_tmp);
  EXPECT_EQ(answer["bwd_mem_tmp"], info.bwd_mem_tmp);
  EXPECT_EQ(answer["bwd_mem_out"], info.bwd_mem_out);
  // There is a gradient for each parameter.
  int64_t parameters = 0;
  for (const graph::DataflowNode& node : graph.nodes)
    if (node.name.starts_with("GPT2LMHeadModel.")) parameters += node.bytes;
  EXPECT_EQ(info.bwd_mem_out, parameters);
}

TEST_F(DataflowCommandTest, OtherFilesAreRefused) {
  json graph = json::parse(kSmallDataflow);
  graph["nodes"][3].erase("stage");
  PutFile("unstaged.json", graph.dump());
  ExpectRefused(
      Acplan({"module", "dataflow", "unstaged.json", "-o", "info.json"}),
      {"unstaged.json: nodes[3]: expected the key \"stage\""});
  EXPECT_FALSE(Exists("info.json"));
  ExpectRefused(Acplan({"module", "dataflow", ProfilePath("transformer4")}),
                {"format: expected \"acplan.dataflow\""});
  ExpectRefused(Acplan({"module", "dataflow", "none.json"}), {"none.json"});
  ExpectRefused(Acplan({"module", "dataflow", kGraph, "-o", kGraph}),
                {"--output"});
  ExpectRefused(Acplan({"module", "dataflow"}), {"GRAPH is required"});
}

}  // namespace

}  // namespace acplan::cli
