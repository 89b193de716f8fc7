#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "costmodel/calculon/llm/evaluation.h"
#include "costmodel/calculon/llm/schedule.h"
#include "costmodel/calculon/search/search.h"
#include "costmodel/calculon/search/space.h"

namespace acplan::costmodel {

// A walk over the executions of a unit, variant by variant. A `Block` holds the results for
// a block, and is computed once for all executions that share it.
template <typename Block>
class UnitWalk {
 public:
  UnitWalk(const SearchProblem& problem, const SearchUnit& unit)
      : problem_(problem),
        unit_(unit),
        tiers_(SearchTiers(problem, unit)),
        sizes_(MicrobatchSizes(problem, unit)),
        blocks_(kBlockKinds * sizes_.size() *
                static_cast<size_t>(tiers_.tensor)) {}

  // Walks over the executions of a variant in order, and calls `visit(execution, index,
  // schedule, block)` with each one that fits. `make_block(execution)` returns its block.
  // `fits(execution, schedule, block)` is called once for all tiers of the network, which
  // change times, not memory.
  template <typename MakeBlock, typename Fits, typename Visit>
  SearchCounts Run(const SearchVariant& variant, const SearchOptions& options,
                   MakeBlock make_block, Fits fits, Visit visit) {
    SearchCounts counts;
    const Calls<MakeBlock, Fits, Visit> calls = {make_block, fits, visit};
    Execution execution = MakeExecution(unit_, variant);
    for (size_t size = 0; size < sizes_.size(); ++size) {
      execution.microbatch_size = sizes_[size];
      if (options.counts_only) {
        counts.total += tiers_.Combinations();
        continue;
      }
      const int64_t good_before = counts.good;
      RunMicrobatch(execution, size, calls, counts);
      if (options.breaks_microbatches && counts.good == good_before) break;
    }
    return counts;
  }

 private:
  static constexpr size_t kBlockKinds = 2 * 3 * 2;

  template <typename MakeBlock, typename Fits, typename Visit>
  struct Calls {
    MakeBlock& make_block;
    Fits& fits;
    Visit& visit;
  };

  template <typename CallsOfRun>
  void RunMicrobatch(Execution& execution, size_t size, const CallsOfRun& calls,
                     SearchCounts& counts) {
    const Schedule schedule = ScheduleOf(problem_.model, execution);
    std::optional<bool> has_memory;
    for (int t = 0; t < tiers_.tensor; ++t) {
      execution.tensor_par_net = t;
      for (int p = 0; p < tiers_.pipeline; ++p) {
        execution.pipeline_par_net = p;
        for (int d = 0; d < tiers_.data; ++d) {
          execution.data_par_net = d;
          const int64_t index = counts.total++;
          if (!CheckFit(problem_.model, problem_.system, execution).Fits() ||
              (has_memory && !*has_memory)) {
            ++counts.bad;
            continue;
          }
          std::optional<Block>& block = BlockOf(execution, size);
          if (!block) block = calls.make_block(execution);
          if (!has_memory) {
            has_memory = calls.fits(execution, schedule, *block);
          }
          if (!*has_memory) {
            ++counts.bad;
            continue;
          }
          ++counts.good;
          calls.visit(execution, index, schedule, *block);
        }
      }
    }
  }

  std::optional<Block>& BlockOf(const Execution& execution, size_t size) {
    const size_t kind = (execution.seq_par_ag_redo ? 6 : 0) +
                        2 * static_cast<size_t>(execution.tensor_par_overlap) +
                        (execution.fused_activation ? 1 : 0);
    return blocks_[(kind * sizes_.size() + size) *
                       static_cast<size_t>(tiers_.tensor) +
                   static_cast<size_t>(execution.tensor_par_net)];
  }

  const SearchProblem& problem_;
  const SearchUnit& unit_;
  TierCounts tiers_;
  std::vector<int64_t> sizes_;
  std::vector<std::optional<Block>> blocks_;
};

}  // namespace acplan::costmodel
