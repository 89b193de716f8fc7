#pragma once

#include "costmodel/training/layer/layer_operations.h"
#include "costmodel/training/strategy/stage_layout.h"

namespace acplan::costmodel {

// Parameters, elements, that a rank computes with; what is sharded over data
// parallel ranks is not divided by them.
struct RankParameters {
  double dense = 0;
  double experts = 0;
};

RankParameters LayerParametersOfRank(const TrainingJob& job, bool is_moe);
RankParameters StageParametersOfRank(const TrainingJob& job,
                                     const StageContent& stage);

// The share of an operation's forward pass that runs again in the backward pass; what
// a plan runs again is not among it.
double RecomputedShare(const LayerOperation& operation,
                       const TrainingStrategy& strategy);

}  // namespace acplan::costmodel
