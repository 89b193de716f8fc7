#pragma once

#include <vector>

#include "costmodel/training/layer/layer_graph.h"

namespace acplan::costmodel {

// What a layer keeps, and what runs again for the rest.
struct PolicySets {
  TensorSet kept = {};
  OperationSet runs = {};
};

// All sets of tensors of which none can be dropped for nothing: without any one of
// them another operation runs again. They depend on what operations read alone,
// not on bytes and times.
std::vector<PolicySets> SetsOfPolicies(const LayerGraph& graph);

// Whether operations of both read and make the same, so that their sets are.
bool IsSameStructure(const LayerGraph& a, const LayerGraph& b);

// A choice of what a layer keeps of a microbatch.
struct LayerPolicy {
  PolicySets sets = {};
  double bytes = 0;  // the layer's input among them
  double gpu = 0;    // seconds of what runs again, communication with them
  double host = 0;   // seconds of launching it
};

// Data: an operation o that runs again takes g(o) seconds of the GPU and h(o) of the
//   host; a tensor x takes b(x) bytes.
// Variables: keep(x), runs(o) in {0, 1}.
// Subject to: runs(o) where o makes a tensor that is not kept, and where an
//   operation that runs again reads an output of o that is not kept.
// All policies that no other one beats in sum b keep, sum g runs and sum h runs, by
// ascending bytes; `sets` are SetsOfPolicies of the graph. The last one keeps all.
std::vector<LayerPolicy> PoliciesOfLayer(const LayerGraph& graph,
                                         const std::vector<PolicySets>& sets);

}  // namespace acplan::costmodel
