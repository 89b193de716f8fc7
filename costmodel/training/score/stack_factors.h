#pragma once

#include <vector>

#include "costmodel/training/score/score.h"

namespace acplan::costmodel {

// The predictions, each times one factor of its stack (source, GPU, precision,
// whether there are experts), so that what remains is not the speed of a stack.
// The factor is the median of measured by predicted over runs of the same stack
// in the other half: the groups of a stack, in their order, go to either half in
// turn, and runs of a group always to the same. Runs whose stack has none in the
// other half are not predicted. `predictions` are those of `runs`, in their order.
std::vector<Prediction> ApplyStackFactors(
    const std::vector<TrainingRun>& runs,
    const std::vector<Prediction>& predictions);

}  // namespace acplan::costmodel
