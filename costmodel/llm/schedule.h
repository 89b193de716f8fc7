#pragma once

#include <algorithm>
#include <cstdint>

#include "costmodel/application/model.h"
#include "costmodel/execution/execution.h"

namespace acplan::costmodel {

// Blocks of the processors at the front of the pipeline; those at its end may
// have one less.
inline int64_t BlocksPerProcessor(const Model& model,
                                  const Execution& execution) {
  return (model.num_blocks + execution.pipeline_par - 1) /
         execution.pipeline_par;
}

// How blocks and microbatches are laid out in the pipeline. A chunk is what a
// processor computes of a microbatch before it sends it on: base blocks, and an
// edge block that sends.
struct Schedule {
  double blocks = 1;          // of a processor
  double missing_blocks = 0;  // of all processors, where blocks divide unevenly
  double chunks = 1;          // of a processor
  double blocks_per_chunk = 1;
  double base_blocks = 0;  // of a chunk
  double microbatches = 1;
  double pipeline_par = 1;
  double last_round = 0;  // microbatches beyond a multiple of pipeline_par
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

// Stages of the pipeline that have a block: where blocks divide unevenly, those
// at its end may have none.
inline int64_t StagesWithBlocks(const Model& model,
                                const Execution& execution) {
  return std::min(model.num_blocks, execution.pipeline_par);
}

// Returns whether a stage of the pipeline, from 0, has a block less than the
// first.
inline bool StageLacksBlock(const Schedule& schedule, int64_t stage) {
  return static_cast<double>(stage) >=
         schedule.pipeline_par - schedule.missing_blocks;
}

// Blocks of a stage.
inline double StageBlocks(const Schedule& schedule, int64_t stage) {
  return schedule.blocks - (StageLacksBlock(schedule, stage) ? 1 : 0);
}

// Microbatches whose activations a stage holds at most; those of chunks count
// as much as they are of all. One-forward-one-backward, of interleaved chunks
// as Narayanan et al. (2021) schedule them: before its first backward pass a
// stage runs pipeline_par (chunks - 1) + 2 (pipeline_par - stage - 1) + 1
// chunks forward, without interleaving pipeline_par - stage.
inline double StageMicrobatches(const Schedule& schedule, int64_t stage) {
  const double after = schedule.pipeline_par - static_cast<double>(stage) - 1;
  if (schedule.chunks == 1) return std::min(schedule.microbatches, after + 1);
  const double chunks =
      schedule.pipeline_par * (schedule.chunks - 1) + 2 * after + 1;
  return std::min(schedule.microbatches, chunks / schedule.chunks);
}

}  // namespace acplan::costmodel
