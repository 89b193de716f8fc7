#pragma once

#include <vector>

#include "costmodel/training/score/score.h"

namespace acplan::costmodel {

// Returns the predictions, each multiplied by a factor of its stack (source, GPU,
// precision, and whether there are experts), so that the remaining error is not the speed
// of a stack. The factor is the median of measured by predicted over runs of the same stack
// in the other half: the groups of a stack, in their order, go to either half in turn, and
// all runs of a group to the same half. A run is not predicted if its stack has no run in
// the other half. `predictions` are those of `runs`, in their order.
std::vector<Prediction> ApplyStackFactors(
    const std::vector<TrainingRun>& runs,
    const std::vector<Prediction>& predictions);

}  // namespace acplan::costmodel
