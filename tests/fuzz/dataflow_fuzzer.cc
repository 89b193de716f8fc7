// All bytes are an accepted graph that is the same after it is written and read
// again, whose inputs come before it, and whose sums are within those of its
// nodes, or an InputError of one line. Built with -fsanitize=fuzzer, or with
// replay_main.cc.

#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <string_view>

#include "graph/base/input_error.h"
#include "graph/dataflow/dataflow_analysis.h"
#include "graph/dataflow/dataflow_graph.h"
#include "tests/fuzz/checks.h"
#include "tests/fuzz/mutations.h"
#include "tests/support/random_dataflow.h"

namespace {

using namespace acplan::graph;

void CheckNodes(const DataflowGraph& graph) {
  std::set<std::string> names;
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    const DataflowNode& node = graph.nodes[k];
    Require(names.insert(node.name).second, "names of their own");
    Require(node.bytes >= 0 && node.flops.value_or(0) >= 0, "no less than 0");
    const std::set<int32_t> inputs(node.inputs.begin(), node.inputs.end());
    Require(inputs.size() == node.inputs.size(), "each input once");
    for (const int32_t input : inputs)
      Require(input >= 0 && input < static_cast<int32_t>(k), "earlier inputs");
  }
}

void CheckSums(const DataflowGraph& graph) {
  int64_t bytes = 0;
  int64_t flops = 0;
  for (const DataflowNode& node : graph.nodes) {
    bytes += node.bytes;
    flops += node.flops.value_or(0);
  }
  const GraphInfo info = Analyse(graph);
  Require(info.fwd_flop + info.bwd_flop == flops, "all FLOPs");
  Require(info.fwd_mem_in + info.fwd_mem_tmp + info.bwd_mem_tmp +
                  info.bwd_mem_out <=
              bytes,
          "each byte once");
}

}  // namespace

std::string ValidInput(unsigned seed) {
  std::mt19937 random(seed);
  return ToJson(acplan::test_support::RandomDataflow(
      random, 1 + static_cast<int>(random() % 12)));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const DataflowGraph graph = ParseDataflowGraph(text, "fuzz.json");
    CheckNodes(graph);
    CheckSums(graph);
    Require(ParseDataflowGraph(ToJson(graph), "fuzz.json") == graph,
            "the same graph after writing and reading");
  } catch (const acplan::InputError& error) {
    CheckMessage(error);
  }
  return 0;
}
