#pragma once

#include "costmodel/training/layer/layer_operations.h"
#include "costmodel/training/strategy/stage_layout.h"

namespace acplan::costmodel {

// The parameters, in elements, that a rank computes with. Sharding over data parallel ranks
// does not divide them.
struct RankParameters {
  double dense = 0;
  double experts = 0;
};

RankParameters LayerParametersOfRank(const TrainingJob& job, bool is_moe);
RankParameters StageParametersOfRank(const TrainingJob& job,
                                     const StageContent& stage);

// Returns the share of an operation's forward pass that runs again in the backward pass.
// The recomputation of a plan is not included.
double RecomputedShare(const LayerOperation& operation,
                       const TrainingStrategy& strategy);

}  // namespace acplan::costmodel
