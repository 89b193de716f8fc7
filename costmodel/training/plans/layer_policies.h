#pragma once

#include <vector>

#include "costmodel/training/layer/layer_graph.h"

namespace acplan::costmodel {

// The tensors that a layer keeps, and the operations that run again for the others.
struct PolicySets {
  TensorSet kept_tensors = {};
  OperationSet runs = {};
};

// Returns all sets of tensors each of which is worth keeping: without any one of them more
// operations run again. The sets depend only on what operations read, not on bytes and
// times.
std::vector<PolicySets> SetsOfPolicies(const LayerGraph& graph);

// Returns whether operations of both graphs read and make the same, so that SetsOfPolicies
// is the same.
bool IsSameStructure(const LayerGraph& a, const LayerGraph& b);

// A choice of the tensors that a layer keeps for a microbatch.
struct LayerPolicy {
  PolicySets sets = {};
  double bytes = 0;  // including the layer's input
  double gpu = 0;    // seconds of the recomputation, with communication
  double host = 0;   // the host's seconds to launch it
};

// Returns all policies that no other one beats, by ascending bytes.
//
// Data: an operation o that runs again takes g(o) seconds of the GPU and h(o) of the
//   host; a tensor x takes b(x) bytes.
// Variables: keep(x), runs(o) in {0, 1}.
// Subject to: runs(o) if o makes a tensor that is not kept, and if an operation
//   that runs again reads an output of o that is not kept.
//
// A policy beats another one if none of its sum b keep, sum g runs and sum h runs is
// larger. `sets` are SetsOfPolicies of the graph. The last policy keeps all tensors.
std::vector<LayerPolicy> PoliciesOfLayer(const LayerGraph& graph,
                                         const std::vector<PolicySets>& sets);

}  // namespace acplan::costmodel
