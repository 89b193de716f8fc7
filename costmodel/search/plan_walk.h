#pragma once

#include <optional>

#include "costmodel/planning/strategy_plan.h"
#include "costmodel/search/unit_walk.h"

namespace acplan::costmodel {

// As FixedWalk, with the best plan for each execution that may be as fast as is
// asked for.
class PlanWalk {
 public:
  PlanWalk(const SearchProblem& problem, const SearchUnit& unit)
      : problem_(problem), walk_(problem, unit) {}

  // Calls `visit(execution, index, plan)` with each feasible execution, in
  // order, that can reach the rate that `least_rate()` returns.
  template <typename LeastRate, typename Visit>
  SearchCounts Run(const SearchVariant& variant, const SearchOptions& options,
                   LeastRate least_rate, Visit visit) {
    return walk_.Run(
        variant, options,
        [&](const Execution& execution) {
          return Block{ComputeBlockCosts(problem_.model, problem_.system,
                                         execution, problem_.corrections),
                       {}};
        },
        [&](const Execution& execution, const Schedule& schedule,
            const Block& block) {
          return HasMemory(execution, schedule, block.costs);
        },
        [&](const Execution& execution, int64_t index, const Schedule& schedule,
            Block& block) {
          // As fast is fast enough.
          const double cutoff = static_cast<double>(execution.batch_size) /
                                least_rate() * (1 + kRateTolerance);
          if (LeastBatchTime(problem_.system, execution, schedule,
                             block.costs) > cutoff) {
            return;
          }
          if (!block.planned) {
            block.planned =
                PlanBlock(problem_.model, problem_.system, execution);
          }
          visit(execution, index,
                PlanWithBlock(problem_.system, execution, schedule,
                              *block.planned, cutoff));
        });
  }

 private:
  struct Block {
    BlockCosts costs;
    std::optional<PlannedBlock> planned;
  };

  // Returns whether the first stage, which needs most, fits where blocks keep
  // nothing but their input.
  bool HasMemory(const Execution& execution, const Schedule& schedule,
                 const BlockCosts& costs) const {
    const double input = BlockInputBytes(problem_.model, execution);
    return CheckMemory(problem_.system, ComputeStageMemoryNeeds(
                                            execution, schedule.blocks, costs,
                                            {StageMicrobatches(schedule, 0),
                                             schedule.blocks * input, input},
                                            problem_.corrections))
        .Fits();
  }

  const SearchProblem& problem_;
  UnitWalk<Block> walk_;
};

}  // namespace acplan::costmodel
