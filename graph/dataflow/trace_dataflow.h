#pragma once

#include "graph/dataflow/dataflow_graph.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// A call of a module, forward and backward, as a graph for Analyse
// (dataflow_analysis.h). Its nodes are
// - placeholders: storages that are there before the call and that it, or its
//   backward, reads or writes to, in the order of Trace::storages;
// - forward: the operators of the call, with the bytes that they create;
// - loss: one node without bytes that uses what the call returns;
// - backward: the operators from the start to the end of the call's backward;
//   none where the trace does not say when that is.
// A placeholder is saved if autograd saves it in the call, a forward node if it
// saves anything that the node creates. A node's inputs are the last nodes that
// made or wrote to what it reads. Bytes are those of storages, unrounded.
DataflowGraph DataflowOf(const Trace& trace, CallId call);

}  // namespace acplan::graph
