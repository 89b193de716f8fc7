#pragma once

#include <string_view>

#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/layers/layer.h"

namespace acplan::costmodel {

// The context that all layers of a block share.
struct LayerContext {
  double bytes_per_element = 2;
  double optimizer_shards = 1;  // processors that share the optimizer's state
  double tensor_par = 1;
  TensorCommType comm_type = TensorCommType::kAllReduce;
};

// The table of layer types. Sizes are in elements. A FLOP is a multiplication or an
// addition; those of element-wise layers are an operation count for each type. A layer's
// activation is its input unless said otherwise. A parameter has a gradient and two Adam
// moments, and a float32 master copy if the datatype is narrower. Adam takes 11 FLOPs for
// each parameter.

// The product of a matrix with batch * sequence rows and a c_in x c_out matrix.
struct LinearShape {
  double rows;
  double c_in;
  double c_out;

  double Flops() const { return 2 * rows * c_in * c_out; }
};

Layer Linear(const LayerContext& context, std::string_view name,
             const LinearShape& shape, const LayerFlags& flags);

// Returns a linear layer, given the whole c_in and c_out, one of which tensor parallelism
// divides: the output if the layer gathers its input (column-parallel), the input if it
// reduces its output (row-parallel, conjugate). Communication and computing are tiled, with
// a tile for each peer.
Layer OverlappedLinear(const LayerContext& context, std::string_view name,
                       LinearShape shape, bool is_conjugate,
                       const LayerFlags& flags);

// The sizes of `batch` products of a rows x inner matrix and an inner x columns matrix.
struct MatMulShape {
  double batch;
  double rows;
  double inner;
  double columns;
};

Layer BatchMatMul(const LayerContext& context, std::string_view name,
                  const MatMulShape& shape, const LayerFlags& flags);

Layer LayerNorm(const LayerContext& context, std::string_view name,
                double elements, double hidden, const LayerFlags& flags);

// Returns a layer whose activation is the mask, a byte for each element.
Layer DropOut(const LayerContext& context, std::string_view name,
              double elements, const LayerFlags& flags);

// Returns a GeLU. If it is fused with the linear layer before it, it stores nothing.
Layer Activation(const LayerContext& context, std::string_view name,
                 double elements, bool is_fused, const LayerFlags& flags);

Layer SoftMax(const LayerContext& context, std::string_view name,
              double elements, const LayerFlags& flags);

// Returns a layer that adds two tensors.
Layer ElementWise(const LayerContext& context, std::string_view name,
                  double first, double second, const LayerFlags& flags);

// Returns a layer for a tensor with several users: their gradients are added up.
Layer Fork(const LayerContext& context, std::string_view name, double elements,
           double users, const LayerFlags& flags);

// Returns a layer that only communicates with the tensor-parallel peers: it gathers (or
// does nothing) in the forward pass and reduces in the backward pass, or the conjugate of
// that.
Layer TensorParallelComm(const LayerContext& context, std::string_view name,
                         double elements, bool is_conjugate,
                         const LayerFlags& flags);

}  // namespace acplan::costmodel
