#pragma once

#include <span>
#include <vector>

#include "costmodel/training/search/strategy_search.h"

namespace acplan::costmodel {

struct PlannedSearchQuestion {
  const TrainingJob& job;
  const StrategySpace& space;
  const std::vector<PipelineLayout>& layouts;
  MemoryLimit limit = {};
  size_t count = 0;
  double cutoff = 0;  // strategies of more seconds do not count
  const StrategySearchClock& clock;
};

// Finds the fastest strategies of these units with the best plan of recomputation. If
// strategies without recomputation are searched, too, strategies that need none are left
// out. Uses all cores; the answer does not depend on their number, unless a limit ends the
// search.
StrategySearch SearchPlans(const PlannedSearchQuestion& question,
                           std::span<const TrainingStrategy> units);

}  // namespace acplan::costmodel
