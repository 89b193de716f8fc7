#pragma once

#include <vector>

#include "costmodel/training/layer/layer_operations.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// Returns the job of a tower's layers: its images are the sequences. Tensor parallelism
// splits the layers if it divides their heads; context parallelism does not. Products have 16
// bits. Full recomputation, even of some layers, runs all layers of a tower again; other
// recomputation none.
TrainingJob JobOfTower(const TrainingJob& job, const Tower& tower);

// Returns whether any tower computes something: an encoder always, others if there are images.
bool RunsTowers(const TrainingJob& job);

// Returns whether layers and patches of the towers are trained, and projectors.
bool TrainsTowers(const TrainingStrategy& strategy);
bool TrainsProjectors(const TrainingStrategy& strategy);

// Returns the products outside of a tower's layers: of patches, or of its projector. Each rank
// of tensor parallelism computes all of them.
std::vector<LayerOperation> PatchOperations(const TrainingJob& job,
                                            const Tower& tower);
std::vector<LayerOperation> ProjectorOperations(const TrainingJob& job,
                                                const Tower& tower);

// Returns the parameters of all towers on a rank of the stage that has them, and those that are
// trained.
double TowerParametersOfRank(const TrainingJob& job);
double TrainedTowerParametersOfRank(const TrainingJob& job);

}  // namespace acplan::costmodel
