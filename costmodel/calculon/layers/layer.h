#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace acplan::costmodel {

enum class Stage : uint8_t {
  kForward,
  kActivationGradient,
  kWeightGradient,
  kOptimizerStep
};

// The work of a processor in a stage of a layer.
struct Work {
  double flops = 0;
  double mem_accessed = 0;  // bytes of the first tier of memory
};

// The communication of a layer with its tensor-parallel peers.
struct LayerComm {
  enum class Kind : uint8_t {
    kNone,
    kSeparate,   // before or after the computing of other layers
    kOverlapped  // in tiles, while the layer itself computes
  };
  Kind kind = Kind::kNone;
  // A conjugate layer reduces in the forward pass and gathers (or does nothing) in the
  // backward pass; the others gather (or do nothing) in the forward pass and reduce in the
  // backward pass.
  bool is_conjugate = false;
  bool is_repeated = false;    // also in the backward pass, for recomputation
  double input_elements = 0;   // moved if the input is gathered
  double output_elements = 0;  // moved if the output is reduced
};

inline constexpr int kBlockInput = -1;
inline constexpr int kNoLayer = -2;

// A layer of a block, as one processor has it, for one microbatch.
struct Layer {
  std::string_view name;
  bool uses_matrix_engine = false;  // except for the optimizer's step

  // The layers of the block that make its inputs; kBlockInput, kNoLayer.
  std::array<int8_t, 2> sources = {kNoLayer, kNoLayer};

  // Elements.
  double inputs = 0;
  double outputs = 0;
  double weights = 0;
  double activation_grads = 0;

  std::array<Work, 4> work;  // indexed by Stage

  // Bytes.
  double weight_bytes = 0;
  double activation_bytes = 0;  // kept for the backward pass
  // The part of these bytes that is the first of two inputs (of products).
  double first_input_bytes = 0;
  double output_bytes = 0;
  double activation_grad_bytes = 0;
  double weight_grad_bytes = 0;            // those of a shard, in the datatype
  double weight_grad_unsharded_bytes = 0;  // in float32, for accumulation
  double optimizer_bytes = 0;              // those of a shard

  bool is_recomputed = false;
  bool reuses_activation = false;  // that of another layer, where it is counted
  bool stores_activation = true;
  bool stores_output = true;
  bool makes_activation = false;  // the layer makes it itself: a mask
  // The gathered input of its source, not the source's output.
  bool reads_gathered_input = false;

  LayerComm comm;

  const Work& At(Stage stage) const { return work[static_cast<size_t>(stage)]; }
};

// Flags that every type of layer takes.
struct LayerFlags {
  bool is_recomputed = false;
  bool is_communication_repeated = false;
  bool reuses_activation = false;
  bool stores_activation = true;
  bool stores_output = true;
};

}  // namespace acplan::costmodel
