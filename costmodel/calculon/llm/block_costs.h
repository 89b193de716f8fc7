#pragma once

#include <span>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/layers/layer.h"
#include "costmodel/calculon/layers/layer_times.h"
#include "costmodel/calculon/llm/block.h"

namespace acplan::costmodel {

// Returns the hardware that a block's layers run on. Points into the system.
LayerHardware HardwareOf(const System& system, const Execution& execution);

// The costs of a stage of all layers of a block, for one microbatch.
struct StageCosts {
  double flops = 0;
  double flops_time = 0;
  double mem_accessed = 0;
  double mem_time = 0;
  double time = 0;
};

// The tensor-parallel communication of a stage, in a middle block and in the block at the
// end of a chunk.
struct StageComm {
  double base_size = 0;
  double edge_size = 0;
  double base_time = 0;
  double edge_time = 0;
  double base_exposed = 0;
  double edge_exposed = 0;
};

// The costs of a block for one microbatch. They depend on the model, the system and these
// members of the execution: tensor_par, tensor_par_net, microbatch_size, datatype,
// fused_activation, attention_type, activation_recompute, tensor_par_comm_type,
// tensor_par_overlap, seq_par_ag_redo, training, and data_par if the optimizer is sharded.
struct BlockCosts {
  StageCosts forward;
  StageCosts recompute;
  StageCosts activation_grad;
  StageCosts weight_grad;
  StageCosts optimizer;
  StageComm forward_comm;
  StageComm repeated_comm;
  StageComm backward_comm;
  double overlap_bandwidth_required = 0;  // bytes/s
  double useful_flops = 0;
  double forward_send_size = 0;  // bytes to the next stage of a pipeline

  // Bytes.
  double checkpoint_size = 0;
  double weight_space = 0;
  double act_working_space = 0;
  double act_storage_space = 0;
  double act_grad_space = 0;
  double weight_grad_space = 0;
  double weight_grad_space_unsharded = 0;
  double optimizer_space = 0;
};

BlockCosts ComputeBlockCosts(const Model& model, const System& system,
                             const Execution& execution);

}  // namespace acplan::costmodel
