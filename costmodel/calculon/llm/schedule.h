#pragma once

#include <algorithm>
#include <cstdint>

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"

namespace acplan::costmodel {

// Returns the number of blocks of the processors at the front of the pipeline. Processors
// at its end may have one less.
inline int64_t BlocksPerProcessor(const Model& model,
                                  const Execution& execution) {
  return (model.num_blocks + execution.pipeline_par - 1) /
         execution.pipeline_par;
}

// The arrangement of blocks and microbatches in the pipeline. A chunk is the part of a
// microbatch's work that a processor computes before it sends the result on: base blocks,
// and an edge block that sends.
struct Schedule {
  double blocks = 1;          // of a processor
  double missing_blocks = 0;  // over all processors, if blocks divide unevenly
  double chunks = 1;          // of a processor
  double blocks_per_chunk = 1;
  double base_blocks = 0;  // those of a chunk
  double microbatches = 1;
  double pipeline_par = 1;
  double last_round = 0;  // the microbatches beyond a multiple of pipeline_par
};

inline Schedule ScheduleOf(const Model& model, const Execution& execution) {
  const int64_t blocks = BlocksPerProcessor(model, execution);
  const int64_t blocks_per_chunk = blocks / execution.pipeline_interleaving;
  const int64_t microbatches = execution.NumMicrobatches();
  return {
      .blocks = static_cast<double>(blocks),
      .missing_blocks = static_cast<double>(blocks * execution.pipeline_par -
                                            model.num_blocks),
      .chunks = static_cast<double>(execution.pipeline_interleaving),
      .blocks_per_chunk = static_cast<double>(blocks_per_chunk),
      .base_blocks = static_cast<double>(blocks_per_chunk - 1),
      .microbatches = static_cast<double>(microbatches),
      .pipeline_par = static_cast<double>(execution.pipeline_par),
      .last_round = static_cast<double>(microbatches % execution.pipeline_par)};
}

}  // namespace acplan::costmodel
