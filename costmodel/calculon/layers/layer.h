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
    kSeparate,   // after or before the computing of others
    kOverlapped  // in tiles, while the layer itself computes
  };
  Kind kind = Kind::kNone;
  // Where a conjugate layer reduces in the forward pass and gathers (or does
  // nothing) in the backward pass, the others gather and reduce.
  bool is_conjugate = false;
  bool is_repeated = false;    // in the backward pass, for recomputation
  double input_elements = 0;   // moved where the input is gathered
  double output_elements = 0;  // moved where the output is reduced
};

inline constexpr int kBlockInput = -1;
inline constexpr int kNoLayer = -2;

// A layer of a block, as one processor has it, for one microbatch.
struct Layer {
  std::string_view name;
  bool uses_matrix_engine = false;  // but for the optimizer's step

  // Where in the block its inputs are made; kBlockInput, kNoLayer.
  std::array<int8_t, 2> sources = {kNoLayer, kNoLayer};

  // Elements.
  double inputs = 0;
  double outputs = 0;
  double weights = 0;
  double activation_grads = 0;

  std::array<Work, 4> work;  // by Stage

  // Bytes.
  double weight_bytes = 0;
  double activation_bytes = 0;  // kept for the backward pass
  double first_input_bytes =
      0;  // of those, the first of two inputs' (products)
  double output_bytes = 0;
  double activation_grad_bytes = 0;
  double weight_grad_bytes = 0;            // a shard, in the datatype
  double weight_grad_unsharded_bytes = 0;  // in float32, for accumulation
  double optimizer_bytes = 0;              // a shard

  bool is_recomputed = false;
  bool reuses_activation = false;  // another layer's: counted there
  bool stores_activation = true;
  bool stores_output = true;
  bool makes_activation = false;      // by itself: a mask
  bool reads_gathered_input = false;  // its source's, not its output

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
