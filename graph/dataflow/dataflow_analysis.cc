#include "graph/dataflow/dataflow_analysis.h"

#include <algorithm>
#include <vector>

namespace acplan::graph {
namespace {

struct Users {
  int32_t count = 0;
  bool has_loss = false;
};

std::vector<Users> FindUsers(const DataflowGraph& graph) {
  std::vector<Users> users(graph.nodes.size());
  for (const DataflowNode& node : graph.nodes) {
    for (const int32_t input : node.inputs) {
      ++users[input].count;
      if (node.stage == DataflowStage::kLoss) users[input].has_loss = true;
    }
  }
  return users;
}

}  // namespace

GraphInfo Analyse(const DataflowGraph& graph) {
  const std::vector<Users> users = FindUsers(graph);
  std::vector<int32_t> uses_left(graph.nodes.size(), 0);
  int64_t live_bytes = 0;
  GraphInfo info;
  for (size_t k = 0; k < graph.nodes.size(); ++k) {
    const DataflowNode& node = graph.nodes[k];
    const bool is_backward = node.stage == DataflowStage::kBackward;
    (is_backward ? info.bwd_flop : info.fwd_flop) += node.flops.value_or(0);
    if (node.saved && !users[k].has_loss) {
      if (node.stage == DataflowStage::kPlaceholder)
        info.fwd_mem_in += node.bytes;
      if (node.stage == DataflowStage::kForward) info.fwd_mem_tmp += node.bytes;
      continue;
    }
    if (!is_backward) continue;
    if (users[k].count == 0) {
      info.bwd_mem_out += node.bytes;
      continue;
    }
    uses_left[k] = users[k].count;
    live_bytes += node.bytes;
    info.bwd_mem_tmp = std::max(info.bwd_mem_tmp, live_bytes);
    for (const int32_t input : node.inputs) {
      if (uses_left[input] > 0 && --uses_left[input] == 0)
        live_bytes -= graph.nodes[input].bytes;
    }
  }
  return info;
}

}  // namespace acplan::graph
