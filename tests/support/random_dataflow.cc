#include "tests/support/random_dataflow.h"

#include <algorithm>
#include <string>

namespace acplan::test_support {

using graph::DataflowGraph;
using graph::DataflowNode;
using graph::DataflowStage;

DataflowGraph RandomDataflow(std::mt19937& random, int nodes) {
  DataflowGraph graph;
  graph.model.name = "random";
  for (int k = 0; k < nodes; ++k) {
    DataflowNode node{.name = "n" + std::to_string(k)};
    // Half of the nodes are backward, and few are the loss.
    const int kind = static_cast<int>(random() % 12);
    node.stage = kind == 0  ? DataflowStage::kLoss
                 : kind < 3 ? DataflowStage::kPlaceholder
                 : kind < 6 ? DataflowStage::kForward
                            : DataflowStage::kBackward;
    node.saved = random() % 4 == 0;
    node.bytes = static_cast<int64_t>(random() % 1000);
    const int fan_in = k == 0 ? 0 : static_cast<int>(random() % 5);
    for (int i = 0; i < fan_in; ++i) {
      const int reach = std::min(k, random() % 3 == 0 ? k : 6);
      const auto input = static_cast<int32_t>(k - 1 - random() % reach);
      if (std::ranges::find(node.inputs, input) == node.inputs.end())
        node.inputs.push_back(input);
    }
    if (random() % 3 == 0) node.flops = random() % 5000;
    graph.nodes.push_back(std::move(node));
  }
  return graph;
}

}  // namespace acplan::test_support
