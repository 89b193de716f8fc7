#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "costmodel/application/model.h"
#include "costmodel/execution/corrections.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/llm/block_costs.h"

namespace acplan::costmodel {

// The costs that running an operator again adds to those of a block.
struct RecomputeCosts {
  StageCosts recompute;
  StageCosts weight_grad;  // slower beside repeated communication
  StageComm repeated_comm;
};

// A step of a block's forward pass that can run again: a layer, or the
// gathering of an overlapped layer's input.
struct Operator {
  enum class Kind : uint8_t { kLayer, kGather };

  int layer = 0;  // index in the block
  Kind kind = Kind::kLayer;
  std::string_view name;         // of the layer
  std::vector<int> inputs = {};  // operators whose output it reads
  int output = -1;  // the tensor that is its output, if it may be kept
  int mask = -1;    // the tensor that it makes besides
  RecomputeCosts recompute = {};
};

// A tensor of a microbatch that a block may keep for its backward pass.
struct KeepableTensor {
  int maker = 0;  // operator
  bool is_mask = false;
  bool is_required = true;  // by the backward pass; else only to make others
  double bytes = 0;
};

// The operators of a block in the order of its forward pass, and the tensors
// that its backward pass reads. The block's input is kept always.
struct BlockOperators {
  std::vector<Operator> operators;
  std::vector<KeepableTensor> tensors;  // at most 32
  double input_bytes = 0;
};

// Lists the operators of a training execution that passed CheckFit. Its
// activation_recompute and seq_par_ag_redo do not matter: they are policies.
// All corrections are on.
BlockOperators ListOperators(const Model& model, const System& system,
                             const Execution& execution);

// A bit a tensor, by its index, that says whether it is kept.
using KeptTensors = uint32_t;

inline bool IsKept(KeptTensors kept, int tensor) {
  return tensor >= 0 && (kept >> tensor & 1) != 0;
}
inline KeptTensors AllTensors(const BlockOperators& block) {
  return static_cast<KeptTensors>((uint64_t{1} << block.tensors.size()) - 1);
}

// Returns for each operator whether it runs again before the backward pass,
// where `kept` is kept: to make a required tensor, or an input of an operator
// that runs again.
std::vector<bool> RunsAgain(const BlockOperators& block, KeptTensors kept);

// Bytes of a microbatch, the block's input among them.
double KeptBytes(const BlockOperators& block, KeptTensors kept);

// `costs`, those of a block that keeps everything, for one that keeps `kept`.
BlockCosts CostsWith(const BlockCosts& costs, const BlockOperators& block,
                     KeptTensors kept);

// "AttnBlock_Query", "AttnBlock_DropOut mask", "MlpBlock_Mlp1_AG gathered
// input".
std::string TensorName(const BlockOperators& block, int tensor);

// The execution that policies are applied to: recompute none, no redo.
Execution PlannedExecution(const Execution& execution);

}  // namespace acplan::costmodel
