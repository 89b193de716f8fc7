#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "costmodel/training/layer/operation_times.h"

namespace acplan::costmodel {

// A bit an operation of a layer, and a bit a tensor, by their positions.
using OperationSet = uint64_t;
using TensorSet = uint32_t;

// An operation that may run again in the backward pass.
struct GraphOperation {
  std::string name = {};     // of its kind; "norm 2" is the layer's second norm
  OperationSet inputs = {};  // whose outputs it reads, beside the layer's input
  PassTime forward = {};     // of a microbatch
  double flops = 0;          // of products and attention
};

// What the backward pass reads: kept from the forward pass, or made again.
struct GraphTensor {
  OperationSet makers = {};
  double bytes = 0;  // of a microbatch
  // What operations after the makers read. Else it is beside that: the mask of a
  // dropout.
  bool is_output = true;
};

// A layer on one rank, its operations in the order of the forward pass. Its input
// is kept always.
struct LayerGraph {
  std::vector<GraphOperation> operations = {};  // at most 64
  std::vector<GraphTensor> tensors = {};        // at most 20
  double input_bytes = 0;

  // Of a microbatch where nothing runs again.
  double WholeBytes() const;
  double KeptBytes(TensorSet kept) const;
};

// The layer with or without experts of `job`, whose microbatch is set. Bytes of
// its tensors and its input are together what LayerOperations say that is saved.
// Times are as UnitTimes takes them: of layers with and without a window the mean.
LayerGraph GraphOfLayer(const TrainingJob& job, bool is_moe);

// Operations that run again where `kept` is kept: those that make another tensor,
// and those whose output one of them reads and nobody keeps.
OperationSet RunsAgain(const LayerGraph& graph, TensorSet kept);

// "norm, up": the makers of a tensor.
std::string NameOfTensor(const LayerGraph& graph, const GraphTensor& tensor);

}  // namespace acplan::costmodel
