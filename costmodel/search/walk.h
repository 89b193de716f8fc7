#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "costmodel/llm/batch_times.h"
#include "costmodel/llm/block.h"
#include "costmodel/llm/evaluation.h"
#include "costmodel/llm/memory_needs.h"
#include "costmodel/llm/schedule.h"
#include "costmodel/search/search.h"
#include "costmodel/search/space.h"

namespace acplan::costmodel {

// Evaluates the executions of a unit, variant by variant. What a block costs is
// computed once for all executions that share it.
class UnitWalk {
 public:
  UnitWalk(const SearchProblem& problem, const SearchUnit& unit)
      : problem_(problem),
        unit_(unit),
        tiers_(SearchTiers(problem, unit)),
        sizes_(MicrobatchSizes(problem, unit)),
        net_filters_(NetFilters(problem)),
        blocks_(kBlockKinds * sizes_.size() *
                static_cast<size_t>(tiers_.tensor)) {}

  // Calls `visit(execution, index, memory, times, block)` with each feasible
  // execution, in order.
  template <typename Visit>
  SearchCounts Run(const SearchVariant& variant, const SearchOptions& options,
                   Visit visit) {
    SearchCounts counts;
    Execution execution = MakeExecution(unit_, variant);
    for (size_t size = 0; size < sizes_.size(); ++size) {
      execution.microbatch_size = sizes_[size];
      const int64_t good_before = counts.good;
      RunMicrobatch(execution, size, options, counts, visit);
      if (options.breaks_microbatches && counts.good == good_before) break;
    }
    return counts;
  }

 private:
  static constexpr size_t kBlockKinds = 2 * 3 * 2;

  struct CachedBlock {
    bool is_known = false;
    BlockCosts costs;
  };

  template <typename Visit>
  void RunMicrobatch(Execution& execution, size_t size,
                     const SearchOptions& options, SearchCounts& counts,
                     Visit& visit) {
    if (options.counts_only) {
      counts.total += tiers_.Combinations();
      return;
    }
    // Tiers of the network change times, not memory.
    const Schedule schedule = ScheduleOf(problem_.model, execution);
    MemoryNeeds memory;
    bool is_memory_known = false;
    bool has_memory = false;
    for (int t = 0; t < tiers_.tensor; ++t) {
      execution.tensor_par_net = t;
      for (int p = 0; p < tiers_.pipeline; ++p) {
        execution.pipeline_par_net = p;
        for (int d = 0; d < tiers_.data; ++d) {
          execution.data_par_net = d;
          if (!Passes(net_filters_, execution)) continue;
          const int64_t index = counts.total++;
          if (!CheckFit(problem_.model, problem_.system, execution).Fits() ||
              (is_memory_known && !has_memory)) {
            ++counts.bad;
            continue;
          }
          const BlockCosts& block = BlockOf(execution, size);
          if (!is_memory_known) {
            memory = ComputeMemoryNeeds(execution, schedule, block,
                                        problem_.corrections);
            has_memory = CheckMemory(problem_.system, memory).Fits();
            is_memory_known = true;
          }
          if (!has_memory) {
            ++counts.bad;
            continue;
          }
          ++counts.good;
          visit(execution, index, memory,
                ComputeBatchTimes(problem_.system, execution, schedule, block,
                                  problem_.corrections),
                block);
        }
      }
    }
  }

  const BlockCosts& BlockOf(const Execution& execution, size_t size) {
    const size_t kind = (execution.seq_par_ag_redo ? 6 : 0) +
                        2 * static_cast<size_t>(execution.tensor_par_overlap) +
                        (execution.fused_activation ? 1 : 0);
    CachedBlock& cached =
        blocks_[(kind * sizes_.size() + size) *
                    static_cast<size_t>(tiers_.tensor) +
                static_cast<size_t>(execution.tensor_par_net)];
    if (!cached.is_known) {
      cached.costs = ComputeBlockCosts(problem_.model, problem_.system,
                                       execution, problem_.corrections);
      cached.is_known = true;
    }
    return cached.costs;
  }

  const SearchProblem& problem_;
  const SearchUnit& unit_;
  TierCounts tiers_;
  std::vector<int64_t> sizes_;
  std::vector<KeyFilter> net_filters_;
  std::vector<CachedBlock> blocks_;
};

}  // namespace acplan::costmodel
