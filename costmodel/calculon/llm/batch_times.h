#pragma once

#include <span>

#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/llm/block_costs.h"
#include "costmodel/calculon/llm/schedule.h"

namespace acplan::costmodel {

// The seconds of a block in the forward or the backward pass of a microbatch.
struct BlockTime {
  double without_offload = 0;
  double offload_overhead = 0;  // the part that computing does not hide

  double Total() const { return without_offload + offload_overhead; }
};

struct PassTimes {
  BlockTime base;
  BlockTime edge;
  double send = 0;  // the time to send a chunk's result through the pipeline
  double offload_size = 0;  // bytes of each block
};

// Data-parallel communication of gradients.
struct DataParallelTimes {
  double block_size = 0;  // bytes
  double block_time = 0;
  double link = 0;
  double exposed = 0;
  // The seconds that hide the communication of all chunks but the last, and of the last
  // one.
  double chunk_window = 0;
  double tail_window = 0;
  // The seconds of a chunk's backward pass that hide communication, the seconds by which a
  // chunk's communication exceeds them, and the seconds that the last chunk exposes.
  double chunk_overlap = 0;
  double chunk_excess = 0;
  double tail_exposed = 0;
  // The seconds by which communication exceeds computing, negative if it does not: in all
  // chunks but the last, for collisions with the pipeline's communication there, and in the
  // last chunk.
  double chunk_balance = 0;
  double chunk_collisions = 0;
  double tail_balance = 0;
};

// The seconds of a batch on a processor, and their parts.
struct BatchTimes {
  PassTimes forward_pass;
  PassTimes backward_pass;
  DataParallelTimes data_parallel;

  double forward = 0;
  double backward = 0;
  double optimizer = 0;
  double recompute = 0;
  double forward_offload_exposed = 0;
  double backward_offload_exposed = 0;
  double repeated_comm_link = 0;
  double repeated_comm_exposed = 0;
  double bubble = 0;
  double tensor_comm_link = 0;
  double tensor_comm_exposed = 0;
  double pipeline_comm = 0;  // all of it is exposed
  double total = 0;
};

BatchTimes ComputeBatchTimes(const System& system, const Execution& execution,
                             const Schedule& schedule, const BlockCosts& block);

}  // namespace acplan::costmodel
