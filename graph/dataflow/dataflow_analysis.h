#pragma once

#include <cstdint>

#include "graph/dataflow/dataflow_graph.h"

namespace acplan::graph {

// Says what a graph holds in memory and computes. Names and rules are those of
// ColossalAI's `GraphInfo` and `autograd_graph_analysis`
// (colossalai/fx/profiler/dataflow.py). Bytes and FLOPs.
struct GraphInfo {
  int64_t fwd_flop = 0;
  int64_t bwd_flop = 0;
  int64_t fwd_mem_in = 0;   // saved placeholders
  int64_t fwd_mem_tmp = 0;  // saved forward values
  int64_t bwd_mem_tmp = 0;  // backward values in use, at their peak
  int64_t bwd_mem_out = 0;  // backward values that no node uses: gradients

  bool operator==(const GraphInfo&) const = default;
};

// The users of a node are the distinct nodes, of any stage, that have it among
// their inputs. Let S be the saved nodes none of whose users is of stage loss:
//
//   fwd_mem_in  = sum of bytes over the placeholders in S
//   fwd_mem_tmp = sum of bytes over the forward nodes in S
//
// and nothing else counts of S, saved backward nodes least of all. Of the nodes
// not in S, those of stage backward are taken in order:
// - one without users adds its bytes to bwd_mem_out, and releases nothing;
// - one with n users joins the live set with n uses left; then
//     bwd_mem_tmp = max(bwd_mem_tmp, bytes of the nodes with a use left);
//   then each of its inputs that is in the live set has one use less.
// So a value that a node of another stage, one in S or one without users uses
// is never released.
//
//   bwd_flop = sum of flops over the backward nodes, in S or not
//   fwd_flop = sum of flops over all others
//
// ColossalAI's function leaves both at 0, as do nodes without flops here.
//
// Time linear in nodes and inputs. The graph must be one that
// ParseDataflowGraph could return.
GraphInfo Analyse(const DataflowGraph& graph);

}  // namespace acplan::graph
