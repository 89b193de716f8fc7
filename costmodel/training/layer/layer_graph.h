#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/training/layer/operation_times.h"

namespace acplan::costmodel {

// A bit for each operation of a layer, and a bit for each tensor, by their positions.
using OperationSet = uint64_t;
using TensorSet = uint32_t;

// An operation that may run again in the backward pass.
struct GraphOperation {
  // The name of its kind; "norm 2" is the layer's second norm.
  std::string name = {};
  // The operations whose outputs it reads, apart from the layer's input.
  OperationSet inputs = {};
  PassTime forward = {};  // for a microbatch
  double flops = 0;       // those of products and attention
};

// A tensor that the backward pass reads: it is kept from the forward pass, or recomputed.
struct GraphTensor {
  OperationSet makers = {};
  double bytes = 0;  // for a microbatch
  // If true, the tensor is the output that operations after the makers read. Otherwise it
  // is made beside the output: the mask of a dropout.
  bool is_output = true;
};

// A layer on one rank, its operations in the order of the forward pass. Its input is always
// kept.
struct LayerGraph {
  std::vector<GraphOperation> operations = {};  // at most 64
  std::vector<GraphTensor> tensors = {};        // at most 20
  double input_bytes = 0;

  // Returns the bytes of a microbatch if nothing runs again.
  double WholeBytes() const;
  double KeptBytes(TensorSet kept_tensors) const;
};

// Returns the layer with or without experts of `job`, whose microbatch is set. The bytes of
// its tensors and its input sum up to the saved bytes of LayerOperations. Times are as in
// UnitTimes: means over layers with and without a window.
LayerGraph GraphOfLayer(const TrainingJob& job, bool is_moe);

// Returns the operations that run again if `kept_tensors` are kept: those that make another
// tensor, and those with an output that one of them reads and that is not kept.
OperationSet RunsAgain(const LayerGraph& graph, TensorSet kept_tensors);

// Returns a tensor's name, which is made from its makers: "norm + up".
std::string NameOfTensor(const LayerGraph& graph, const GraphTensor& tensor);

}  // namespace acplan::costmodel
