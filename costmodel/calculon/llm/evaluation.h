#pragma once

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/llm/batch_times.h"
#include "costmodel/calculon/llm/block_costs.h"
#include "costmodel/calculon/llm/fit.h"
#include "costmodel/calculon/llm/memory_needs.h"

namespace acplan::costmodel {

// All that is known of an execution of a model on a system.
struct Evaluation {
  Verdict verdict;
  // Where the verdict is that it fits, or on memory:
  BlockCosts block;
  MemoryNeeds memory;
  // Where it is that it fits:
  BatchTimes times;
};

// `execution` is consistent in itself (ReadExecution).
Evaluation Evaluate(const Model& model, const System& system,
                    const Execution& execution);

// Where capacity is exceeded, the tier.
Verdict CheckMemory(const System& system, const MemoryNeeds& memory);

// Samples a second.
inline double SampleRate(const Execution& execution, const BatchTimes& times) {
  return static_cast<double>(execution.batch_size) / times.total;
}

}  // namespace acplan::costmodel
