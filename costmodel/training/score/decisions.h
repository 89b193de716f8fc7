#pragma once

#include <array>
#include <cstddef>
#include <string>
#include <vector>

#include "costmodel/training/confidence/intervals.h"
#include "costmodel/training/score/score.h"

namespace acplan::costmodel {

// How well predictions choose among measured strategies. A group is all runs of a source
// with the same model, GPUs, batch, sequence and precision, so that only the strategy
// differs, at least three of them. Regret is the time of the chosen strategy by that of
// the best one, less 1; chances are those of a choice at random.
struct DecisionScore {
  size_t groups = 0;
  size_t runs = 0;
  double regret = 0;           // of the fastest by prediction, mean over groups
  double regret_of_three = 0;  // of the best of the three fastest by prediction
  // The choice after the runs that ChooseNextRuns names were measured: after none, two and
  // three of them, by what it expects and by the measured times.
  struct Measuring {
    double expected_regret = 0;
    double regret = 0;
  };
  std::array<Measuring, 3> measuring = {};
  double chance_regret = 0;
  double good_share = 0;  // groups with a regret of at most 5%
  double chance_good_share = 0;
  double kendall_tau = 0;  // mean over groups
};

// Scores predictions of `runs`, in their order; those without seconds do not count. Measuring
// assumes errors as those of `intervals`; without it nothing is said of measuring.
DecisionScore ScoreDecisions(const std::vector<TrainingRun>& runs,
                             const std::vector<Prediction>& predictions,
                             const IntervalModel* intervals = nullptr);

}  // namespace acplan::costmodel
