#pragma once

#include <span>
#include <vector>

#include "costmodel/training/search/strategy_search.h"

namespace acplan::costmodel {

struct PlannedSearchQuestion {
  const TrainingJob& job;
  const StrategySpace& space;
  const std::vector<PipelineLayout>& layouts;
  double budget = 0;
  size_t count = 0;
  double cutoff = 0;  // seconds: what takes longer does not count
  const StrategySearchClock& clock;
};

// The fastest strategies of these units with the best plan of recomputation, but for
// those that nothing has to run again of where strategies without recomputation are
// searched, too. Uses all cores; the answer does not depend on how many, unless a
// limit ends it.
StrategySearch SearchPlans(const PlannedSearchQuestion& question,
                           std::span<const TrainingStrategy> units);

}  // namespace acplan::costmodel
