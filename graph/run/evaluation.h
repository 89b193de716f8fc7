#pragma once

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Returns the storages that an evaluation of the traced step's inputs uses: its forward
// pass under torch.no_grad() and after model.eval().
//
// - Autograd keeps nothing: a storage lives as long as the program holds it, and at
//   most to the end of the pass, when the results go as well.
// - Dropout returns its input, and attention makes no sums for the backward pass if its
//   kernel can leave them out. Other operators are those of training, so a module
//   that computes something else in evaluation (running statistics, a cache) is not known.
//
// Steps and lives are as in LivedStep; only storages that the forward pass makes have a life.
LivedStep EvaluationOf(const Trace& trace);

}  // namespace acplan::graph
