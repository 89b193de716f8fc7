#pragma once

#include "costmodel/calculon/llm/batch_times.h"
#include "costmodel/calculon/llm/block_costs.h"
#include "costmodel/calculon/llm/memory_needs.h"
#include "costmodel/calculon/search/unit_walk.h"

namespace acplan::costmodel {

// A walk that evaluates the executions of a unit, each with its own recomputation.
class FixedWalk {
 public:
  FixedWalk(const SearchProblem& problem, const SearchUnit& unit)
      : problem_(problem), walk_(problem, unit) {}

  // Evaluates the executions in order. Calls `visit(execution, index, memory, times,
  // block)` with each feasible one.
  template <typename Visit>
  SearchCounts Run(const SearchVariant& variant, const SearchOptions& options,
                   Visit visit) {
    MemoryNeeds memory;
    return walk_.Run(
        variant, options,
        [&](const Execution& execution) {
          return ComputeBlockCosts(problem_.model, problem_.system, execution);
        },
        [&](const Execution& execution, const Schedule& schedule,
            const BlockCosts& block) {
          memory = ComputeMemoryNeeds(execution, schedule, block);
          return CheckMemory(problem_.system, memory).Fits();
        },
        [&](const Execution& execution, int64_t index, const Schedule& schedule,
            const BlockCosts& block) {
          visit(execution, index, memory,
                ComputeBatchTimes(problem_.system, execution, schedule, block),
                block);
        });
  }

 private:
  const SearchProblem& problem_;
  UnitWalk<BlockCosts> walk_;
};

}  // namespace acplan::costmodel
