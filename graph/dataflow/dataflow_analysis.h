#pragma once

#include <cstdint>

#include "graph/dataflow/dataflow_graph.h"

namespace acplan::graph {

// The memory that a graph holds and the work that it computes, in bytes and FLOPs. Names
// and rules are those of ColossalAI's `GraphInfo` and `autograd_graph_analysis`
// (colossalai/fx/profiler/dataflow.py).
struct GraphInfo {
  int64_t fwd_flop = 0;
  int64_t bwd_flop = 0;
  int64_t fwd_mem_in = 0;   // saved placeholders
  int64_t fwd_mem_tmp = 0;  // saved forward values
  int64_t bwd_mem_tmp = 0;  // backward values in use, at their peak
  int64_t bwd_mem_out = 0;  // backward values that no node uses: gradients

  bool operator==(const GraphInfo&) const = default;
};

// Computes the sums of a graph. The users of a node are the distinct nodes, of any stage,
// that have it among their inputs. Let S be the saved nodes without users of stage loss:
//
//   fwd_mem_in  = sum of bytes over the placeholders in S
//   fwd_mem_tmp = sum of bytes over the forward nodes in S
//
// and no other node of S counts, in particular no saved backward node. The nodes of stage
// backward that are not in S are taken in order:
// - one without users adds its bytes to bwd_mem_out, and releases nothing;
// - one with n users joins the live set with n remaining uses; then
//     bwd_mem_tmp = max(bwd_mem_tmp, bytes of the nodes with remaining uses);
//   then each of its inputs that is in the live set loses one use.
// So a value is never released if one of its users is of another stage, is in S or has no
// users.
//
//   bwd_flop = sum of flops over the backward nodes, in S or not
//   fwd_flop = sum of flops over all others
//
// ColossalAI's function leaves both at 0, which is also their value here if nodes have no
// flops.
//
// Takes time linear in nodes and inputs. The graph must be one that ParseDataflowGraph
// could return.
GraphInfo Analyse(const DataflowGraph& graph);

}  // namespace acplan::graph
