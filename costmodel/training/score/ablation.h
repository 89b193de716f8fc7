#pragma once

#include <string_view>
#include <vector>

#include "costmodel/training/score/score.h"

namespace acplan::costmodel {

// A part of the model of time that can be switched off: the job without it is predicted as
// if that part did not exist. Nothing is fitted again.
struct ModelFeature {
  std::string_view name = {};
  TrainingJob (*without)(TrainingJob job) = nullptr;
};
const std::vector<ModelFeature>& ModelFeatures();

// The score of predictions without a part.
struct AblatedScore {
  std::string_view feature = {};
  Score score = {};
  // The runs whose time changes by more than one in a thousand.
  size_t changed_runs = 0;
  double error_with = 0;     // their mean error with the part
  double error_without = 0;  // their mean error without it
};

// Returns one score for each feature, in their order. `runs` may have runs without a job.
std::vector<AblatedScore> AblateFeatures(const std::vector<TrainingRun>& runs);

}  // namespace acplan::costmodel
