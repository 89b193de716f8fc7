#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/calculon/execution/execution.h"

namespace acplan::costmodel {

// The processors that a processor communicates with: all processors of its tensor-parallel
// and of its data-parallel group, itself included, and the next stage of its pipeline
// (after the last stage, the first). A member is empty if its degree is 1. Processor d *
// tensor_par * pipeline_par + p * tensor_par + t is the t-th of its tensor-parallel group,
// in stage p of replica d.
struct Peers {
  std::vector<int64_t> tensor;
  std::optional<int64_t> pipeline;
  std::vector<int64_t> data;
};

Peers PeersOf(const Execution& execution, int64_t processor);

}  // namespace acplan::costmodel
