#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/layers/layer.h"

namespace acplan::costmodel {

// The sizes of a block, in elements.
struct BlockShape {
  double rows;  // microbatch * sequence
  double tensor_par;
  double hidden;
  double feedforward;
  double heads;       // the heads on this processor
  double heads_size;  // the size of all heads together
  double head_size;
  double seq;
  double microbatch;
  double activation;  // rows * hidden
  // Rows * hidden, divided under sequence parallelism.
  double shared_activation;
};

BlockShape ShapeOf(const Model& model, const Execution& execution);

// The layers of a block in the order of the forward pass.
class Block {
 public:
  static constexpr int kMostLayers = 24;

  // Adds a layer that reads the output of the layer before, or of the given layers. Returns
  // its index.
  int Add(const Layer& layer) { return Add(layer, last()); }
  int Add(const Layer& layer, int source, int second_source = kNoLayer) {
    layers_[size_] = layer;
    layers_[size_].sources = {static_cast<int8_t>(source),
                              static_cast<int8_t>(second_source)};
    return static_cast<int>(size_++);
  }
  // The index of the last layer; kBlockInput if there is none.
  int last() const { return static_cast<int>(size_) - 1; }
  std::span<const Layer> layers() const { return {layers_.data(), size_}; }
  std::span<Layer> layers() { return {layers_.data(), size_}; }

 private:
  std::array<Layer, kMostLayers> layers_;
  size_t size_ = 0;
};

// Returns a block as one processor has it. The execution must have passed CheckFit.
Block BuildBlock(const Model& model, const Execution& execution);

}  // namespace acplan::costmodel
