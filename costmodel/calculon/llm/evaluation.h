#pragma once

#include "costmodel/calculon/application/model.h"
#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/llm/batch_times.h"
#include "costmodel/calculon/llm/block_costs.h"
#include "costmodel/calculon/llm/fit.h"
#include "costmodel/calculon/llm/memory_needs.h"

namespace acplan::costmodel {

// The evaluation of an execution of a model on a system.
struct Evaluation {
  Verdict verdict;
  // Set if the verdict is that it fits, or that memory is exceeded:
  BlockCosts block;
  MemoryNeeds memory;
  // Set if the verdict is that it fits:
  BatchTimes times;
};

// Evaluates an execution, which must be consistent (ReadExecution).
Evaluation Evaluate(const Model& model, const System& system,
                    const Execution& execution);

// Returns the tier of memory whose capacity is exceeded, if any.
Verdict CheckMemory(const System& system, const MemoryNeeds& memory);

// Returns samples per second.
inline double SampleRate(const Execution& execution, const BatchTimes& times) {
  return static_cast<double>(execution.batch_size) / times.total;
}

}  // namespace acplan::costmodel
