#pragma once

#include <optional>
#include <vector>

#include "costmodel/llm/evaluation.h"
#include "costmodel/planning/strategy_plan.h"
#include "costmodel/search/search.h"
#include "costmodel/search/space.h"

namespace acplan::costmodel {

// As UnitWalk, with the best plan for each execution that may be as fast as is
// asked for. Blocks, and what they may keep, are computed once for all
// executions that share them.
class PlanWalk {
 public:
  PlanWalk(const SearchProblem& problem, const SearchUnit& unit)
      : problem_(problem),
        unit_(unit),
        tiers_(SearchTiers(problem, unit)),
        sizes_(MicrobatchSizes(problem, unit)),
        net_filters_(NetFilters(problem)),
        blocks_(kBlockKinds * sizes_.size() *
                static_cast<size_t>(tiers_.tensor)) {}

  // Calls `visit(execution, index, plan)` with each feasible execution, in
  // order, that can reach the rate that `least_rate()` returns.
  template <typename LeastRate, typename Visit>
  SearchCounts Run(const SearchVariant& variant, LeastRate least_rate,
                   Visit visit) {
    SearchCounts counts;
    Execution execution = MakeExecution(unit_, variant);
    for (size_t size = 0; size < sizes_.size(); ++size) {
      execution.microbatch_size = sizes_[size];
      RunMicrobatch(execution, size, counts, least_rate, visit);
    }
    return counts;
  }

 private:
  static constexpr size_t kBlockKinds = 3 * 2;

  struct CachedBlock {
    std::optional<BlockCosts> costs;
    std::optional<PlannedBlock> planned;
  };

  template <typename LeastRate, typename Visit>
  void RunMicrobatch(Execution& execution, size_t size, SearchCounts& counts,
                     LeastRate& least_rate, Visit& visit) {
    const Schedule schedule = ScheduleOf(problem_.model, execution);
    const double batch = static_cast<double>(execution.batch_size);
    std::optional<bool> has_memory;
    for (int t = 0; t < tiers_.tensor; ++t) {
      execution.tensor_par_net = t;
      for (int p = 0; p < tiers_.pipeline; ++p) {
        execution.pipeline_par_net = p;
        for (int d = 0; d < tiers_.data; ++d) {
          execution.data_par_net = d;
          if (!Passes(net_filters_, execution)) continue;
          const int64_t index = counts.total++;
          if (!CheckFit(problem_.model, problem_.system, execution).Fits() ||
              (has_memory && !*has_memory)) {
            ++counts.bad;
            continue;
          }
          CachedBlock& block = BlockOf(execution, size);
          if (!has_memory) has_memory = HasMemory(execution, schedule, block);
          if (!*has_memory) {
            ++counts.bad;
            continue;
          }
          ++counts.good;
          if (batch / LeastBatchTime(problem_.system, execution, schedule,
                                     *block.costs) <
              least_rate()) {
            continue;
          }
          if (!block.planned) {
            block.planned =
                PlanBlock(problem_.model, problem_.system, execution);
          }
          visit(execution, index,
                PlanWithBlock(problem_.system, execution, schedule,
                              *block.planned));
        }
      }
    }
  }

  CachedBlock& BlockOf(const Execution& execution, size_t size) {
    const size_t kind = 2 * static_cast<size_t>(execution.tensor_par_overlap) +
                        (execution.fused_activation ? 1 : 0);
    CachedBlock& block = blocks_[(kind * sizes_.size() + size) *
                                     static_cast<size_t>(tiers_.tensor) +
                                 static_cast<size_t>(execution.tensor_par_net)];
    if (!block.costs) {
      block.costs = ComputeBlockCosts(problem_.model, problem_.system,
                                      execution, problem_.corrections);
    }
    return block;
  }

  // Whether the first stage, which needs most, fits where blocks keep nothing
  // but their input.
  bool HasMemory(const Execution& execution, const Schedule& schedule,
                 const CachedBlock& block) const {
    const double input = BlockInputBytes(problem_.model, execution);
    return CheckMemory(
               problem_.system,
               ComputeStageMemoryNeeds(execution, schedule.blocks, *block.costs,
                                       {StageMicrobatches(schedule, 0),
                                        schedule.blocks * input, input},
                                       problem_.corrections))
        .Fits();
  }

  const SearchProblem& problem_;
  const SearchUnit& unit_;
  TierCounts tiers_;
  std::vector<int64_t> sizes_;
  std::vector<KeyFilter> net_filters_;
  std::vector<CachedBlock> blocks_;
};

}  // namespace acplan::costmodel
