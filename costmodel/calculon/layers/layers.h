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

// The table of layer types. Sizes are in elements. A FLOP is a multiplication
// or an addition; those of element-wise layers are an operation count by type.
// A layer's activation is its input unless said otherwise; a parameter has a
// gradient and two Adam moments, and a float32 master copy where the datatype
// is narrower; Adam takes 11 FLOPs a parameter.

// Batch * sequence rows times a c_in x c_out matrix.
struct LinearShape {
  double rows;
  double c_in;
  double c_out;

  double Flops() const { return 2 * rows * c_in * c_out; }
};

Layer Linear(const LayerContext& context, std::string_view name,
             const LinearShape& shape, const LayerFlags& flags);

// As above with the whole c_in and c_out, of which tensor parallelism divides
// one: the output where it gathers its input (column-parallel), the input
// where it reduces its output (row-parallel, conjugate). Communication and
// computing are tiled, a tile a peer.
Layer OverlappedLinear(const LayerContext& context, std::string_view name,
                       LinearShape shape, bool is_conjugate,
                       const LayerFlags& flags);

// `batch` products of a rows x inner by an inner x columns matrix.
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

// Its activation is the mask, a byte an element.
Layer DropOut(const LayerContext& context, std::string_view name,
              double elements, const LayerFlags& flags);

// GeLU; fused with the linear layer before it, it stores nothing.
Layer Activation(const LayerContext& context, std::string_view name,
                 double elements, bool is_fused, const LayerFlags& flags);

Layer SoftMax(const LayerContext& context, std::string_view name,
              double elements, const LayerFlags& flags);

// The sum of two tensors.
Layer ElementWise(const LayerContext& context, std::string_view name,
                  double first, double second, const LayerFlags& flags);

// A tensor that several layers use: its gradients are added up.
Layer Fork(const LayerContext& context, std::string_view name, double elements,
           double users, const LayerFlags& flags);

// Communication with the tensor-parallel peers by itself: a gathering (or
// nothing) forward and a reduction backward, or the conjugate of that.
Layer TensorParallelComm(const LayerContext& context, std::string_view name,
                         double elements, bool is_conjugate,
                         const LayerFlags& flags);

}  // namespace acplan::costmodel
