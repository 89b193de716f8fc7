#pragma once

#include "graph/dataflow/dataflow_graph.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Returns a call of a module, forward and backward, as a graph for Analyse
// (dataflow_analysis.h). Its nodes are
// - placeholders: storages that exist before the call and that the call, or its backward,
//   reads or writes to, in the order of Trace::storages;
// - forward: the operators of the call, with the bytes that they create;
// - loss: one node without bytes that uses the results of the call;
// - backward: the operators from the start to the end of the call's backward; none if the
//   trace does not say when that is.
//
// A placeholder is saved if autograd saves it in the call, a forward node if autograd saves
// something that the node creates. A node's inputs are the nodes that last made or wrote to
// what it reads. Bytes are those of storages, unrounded.
DataflowGraph DataflowOf(const Trace& trace, CallId call);

}  // namespace acplan::graph
