#include "costmodel/calculon/layers/layers.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

struct Sizes {
  double inputs = 0;
  double outputs = 0;
  double weights = 0;
  double activations = 0;
  double activation_grads = 0;
};

struct Flops {
  double forward = 0;
  double activation_grad = 0;
  double weight_grad = 0;
};

Work& At(Layer& layer, Stage stage) {
  return layer.work[static_cast<size_t>(stage)];
}

Layer MakeLayer(const LayerContext& context, std::string_view name,
                const Sizes& sizes, const Flops& flops,
                const LayerFlags& flags) {
  const double width = context.bytes_per_element;
  const double shards = context.optimizer_shards;
  const double weights = sizes.weights;
  Layer layer;
  layer.name = name;
  layer.inputs = sizes.inputs;
  layer.outputs = sizes.outputs;
  layer.weights = weights;
  layer.activation_grads = sizes.activation_grads;
  layer.weight_bytes = weights * width;
  layer.activation_bytes = sizes.activations * width;
  layer.output_bytes = sizes.outputs * width;
  layer.activation_grad_bytes = sizes.activation_grads * width;
  layer.weight_grad_bytes = weights * width / shards;
  layer.weight_grad_unsharded_bytes = weights * 4;
  const double master_copy = width < 4 ? weights * 4 : 0;
  layer.optimizer_bytes = (master_copy + 2 * weights * 4) / shards;
  const double backward_bytes =
      (weights + (sizes.activations + sizes.activation_grads)) * width;
  At(layer, Stage::kForward) = {
      flops.forward, (sizes.inputs + sizes.outputs + weights) * width};
  At(layer, Stage::kActivationGradient) = {flops.activation_grad,
                                           backward_bytes};
  At(layer, Stage::kWeightGradient) = {flops.weight_grad,
                                       weights == 0 ? 0 : backward_bytes};
  At(layer, Stage::kOptimizerStep) = {weights / shards * 11,
                                      layer.optimizer_bytes};
  layer.is_recomputed = flags.is_recomputed;
  layer.reuses_activation = flags.reuses_activation;
  layer.stores_activation = flags.stores_activation;
  layer.stores_output = flags.stores_output;
  return layer;
}

Sizes OverlappedSizes(const LayerContext& context, const LinearShape& shape,
                      bool is_conjugate) {
  const double tiles = context.tensor_par;
  const double inputs = shape.rows * shape.c_in;
  const double outputs = shape.rows * shape.c_out;
  Sizes sizes{.inputs = inputs,
              .outputs = outputs,
              .weights = shape.c_in * shape.c_out};
  if (context.comm_type == TensorCommType::kScattered) {
    if (is_conjugate) {
      sizes.activations = inputs;
      sizes.activation_grads = outputs / tiles + outputs / tiles;
    } else {
      sizes.activations = inputs / tiles;
      sizes.activation_grads = outputs;
    }
  } else if (is_conjugate) {
    sizes.activations = 0;
    sizes.activation_grads = outputs + outputs;
  } else {
    sizes.activations = inputs;
  }
  return sizes;
}

// Returns the sizes of a layer with one input and an output of the same size.
Sizes UnarySizes(double elements, double stored) {
  return {.inputs = elements,
          .outputs = elements,
          .activations = stored,
          .activation_grads = stored};
}

// Returns a layer whose backward pass moves as many bytes as its forward pass.
Layer UnaryLayer(const LayerContext& context, std::string_view name,
                 const Sizes& sizes, const Flops& flops,
                 const LayerFlags& flags) {
  Layer layer = MakeLayer(context, name, sizes, flops, flags);
  At(layer, Stage::kActivationGradient).mem_accessed =
      layer.At(Stage::kForward).mem_accessed;
  return layer;
}

}  // namespace

Layer Linear(const LayerContext& context, std::string_view name,
             const LinearShape& shape, const LayerFlags& flags) {
  const auto& [rows, c_in, c_out] = shape;
  const double flops = shape.Flops();
  Layer layer = MakeLayer(context, name,
                          {.inputs = rows * c_in,
                           .outputs = rows * c_out,
                           .weights = c_in * c_out,
                           .activations = rows * c_in,
                           .activation_grads = rows * c_out},
                          {flops, flops, flops}, flags);
  layer.uses_matrix_engine = true;
  return layer;
}

Layer OverlappedLinear(const LayerContext& context, std::string_view name,
                       LinearShape shape, bool is_conjugate,
                       const LayerFlags& flags) {
  (is_conjugate ? shape.c_in : shape.c_out) /= context.tensor_par;
  const double flops = shape.Flops();
  Layer layer =
      MakeLayer(context, name, OverlappedSizes(context, shape, is_conjugate),
                {flops, flops, flops}, flags);
  layer.uses_matrix_engine = true;
  layer.comm = {.kind = LayerComm::Kind::kOverlapped,
                .is_conjugate = is_conjugate,
                .is_repeated = flags.is_communication_repeated,
                .input_elements = layer.inputs,
                .output_elements = layer.outputs};
  return layer;
}

Layer BatchMatMul(const LayerContext& context, std::string_view name,
                  const MatMulShape& shape, const LayerFlags& flags) {
  const auto& [batch, rows, inner, columns] = shape;
  const double inputs = batch * (rows * inner + inner * columns);
  const double outputs = batch * rows * columns;
  Layer layer = MakeLayer(context, name,
                          {.inputs = inputs,
                           .outputs = outputs,
                           .activations = inputs,
                           .activation_grads = outputs},
                          {batch * 2 * rows * inner * columns,
                           batch * 2 * 2 * rows * inner * columns, 0},
                          flags);
  layer.uses_matrix_engine = true;
  layer.first_input_bytes = batch * rows * inner * context.bytes_per_element;
  return layer;
}

Layer LayerNorm(const LayerContext& context, std::string_view name,
                double elements, double hidden, const LayerFlags& flags) {
  return MakeLayer(context, name,
                   {.inputs = elements,
                    .outputs = elements,
                    .weights = 2 * hidden,
                    .activations = elements,
                    .activation_grads = elements},
                   {9 * elements, 14 * elements, 7 * elements}, flags);
}

Layer DropOut(const LayerContext& context, std::string_view name,
              double elements, const LayerFlags& flags) {
  Layer layer = MakeLayer(context, name,
                          {.inputs = elements,
                           .outputs = elements,
                           .activations = elements,
                           .activation_grads = elements},
                          {elements, elements, 0}, flags);
  const double mask = elements;
  layer.activation_bytes = mask;
  layer.makes_activation = true;
  layer.activation_grad_bytes = elements;
  At(layer, Stage::kForward).mem_accessed += mask;
  At(layer, Stage::kActivationGradient).mem_accessed =
      layer.At(Stage::kForward).mem_accessed;
  return layer;
}

Layer Activation(const LayerContext& context, std::string_view name,
                 double elements, bool is_fused, const LayerFlags& flags) {
  return UnaryLayer(context, name,
                    UnarySizes(elements, is_fused ? 0 : elements),
                    {8 * elements, 13 * elements, 0}, flags);
}

Layer SoftMax(const LayerContext& context, std::string_view name,
              double elements, const LayerFlags& flags) {
  return UnaryLayer(context, name, UnarySizes(elements, elements),
                    {5 * elements, 8 * elements, 0}, flags);
}

Layer ElementWise(const LayerContext& context, std::string_view name,
                  double first, double second, const LayerFlags& flags) {
  const double outputs = std::max(first, second);
  return MakeLayer(context, name,
                   {.inputs = first + second,
                    .outputs = outputs,
                    .activations = first + second,
                    .activation_grads = outputs},
                   {outputs, first + second, 0}, flags);
}

Layer Fork(const LayerContext& context, std::string_view name, double elements,
           double users, const LayerFlags& flags) {
  Layer layer =
      MakeLayer(context, name, {.inputs = elements, .activations = elements},
                {0, users * elements, 0}, flags);
  At(layer, Stage::kForward).mem_accessed = 0;
  At(layer, Stage::kActivationGradient).mem_accessed =
      layer.activation_bytes * (users + 1);
  return layer;
}

Layer TensorParallelComm(const LayerContext& context, std::string_view name,
                         double elements, bool is_conjugate,
                         const LayerFlags& flags) {
  const double peers = context.tensor_par;
  if (peers == 1) elements = 0;
  const double reduction = elements * (peers - 1) / peers;
  Layer layer = MakeLayer(
      context, name,
      {.inputs = elements,
       .outputs = elements,
       .activations = elements,
       .activation_grads = elements},
      {is_conjugate ? reduction : 0, is_conjugate ? 0 : reduction, 0}, flags);
  layer.comm = {.kind = LayerComm::Kind::kSeparate,
                .is_conjugate = is_conjugate,
                .is_repeated = flags.is_communication_repeated,
                .input_elements = elements,
                .output_elements = elements};
  if (context.comm_type == TensorCommType::kScattered) {
    layer.activation_bytes /= peers;
    layer.activation_grad_bytes = layer.activation_bytes;
  } else if (is_conjugate) {
    layer.activation_grad_bytes = 0;
    At(layer, Stage::kActivationGradient).mem_accessed = 0;
  } else {
    layer.activation_bytes = 0;
    At(layer, Stage::kForward).mem_accessed = 0;
  }
  return layer;
}

}  // namespace acplan::costmodel
