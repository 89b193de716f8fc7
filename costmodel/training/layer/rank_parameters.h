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

// Returns the elements that a rank trains: all, or with LoRA those of adapters alone.
RankParameters TrainedLayerParametersOfRank(const TrainingJob& job,
                                            bool is_moe);
RankParameters TrainedStageParametersOfRank(const TrainingJob& job,
                                            const StageContent& stage);

// Returns the bytes of what a rank computes with, adapters included: in 16 bits, or the
// weights of layers in four bits (QLoRA). `trained` are the elements that the stage trains.
RankParameters LayerBytesOfRank(const TrainingJob& job, bool is_moe);
RankParameters StageBytesOfRank(const TrainingJob& job,
                                const StageContent& stage,
                                const RankParameters& trained);

// Returns the elements that all ranks together train.
double CountTrainedParameters(const TrainingJob& job);

// Returns the share of an operation's forward pass that runs again in the backward pass.
// The recomputation of a plan is not included.
double RecomputedShare(const LayerOperation& operation,
                       const TrainingStrategy& strategy);

}  // namespace acplan::costmodel
