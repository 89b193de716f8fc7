#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "costmodel/training/confidence/error_table.h"
#include "costmodel/training/confidence/run_kind.h"

namespace acplan::costmodel {

// The errors of predictions of strategies of one job relative to each other: the difference
// of ln(measured / predicted) of two strategies has the variance
// width^2 (2 noise^2 + slope^2 d^2), where d is the distance of their kinds, and width is
// ln(high / low) of the intervals of both. The part that the errors of all strategies
// have in common does not change a choice.
struct ChoiceErrors {
  double noise = 0;
  double slope = 0;

  // Returns the variance of the difference of two strategies for a width of 1.
  double Variance(const RunKind& a, const RunKind& b) const;
};

// Fits these to errors of predictions, whose intervals have these widths, of runs of the same
// source, model and GPUs; to those without the source's runs if there are any. Both are 0 if
// no job has two runs.
ChoiceErrors FitChoiceErrors(std::span<const RunError> errors,
                             std::span<const double> widths);

// A strategy that a run could measure.
struct PredictedRun {
  double seconds = 0;
  RunKind kind = {};
  double width = 1;  // of its interval: ln(high / low)
};

// Runs to measure, by their place among the predicted ones, and the expected regret of the
// choice that follows: the time of the strategy that is chosen by that of the best, less 1.
struct NextRuns {
  std::vector<size_t> runs = {};
  double regret = 0;
};

// Returns the choice without a measurement, and the best two and the best three runs to
// measure, as far as there are as many. `predicted` has at most kMostPredicted runs. One run
// alone never changes the choice.
constexpr size_t kMostPredicted = 10;
std::vector<NextRuns> ChooseNextRuns(std::span<const PredictedRun> predicted,
                                     const ChoiceErrors& errors);

// Returns the strategy to choose once some runs, at most three, are measured: the fastest by
// its time, or by what the measured errors say of the others. `seconds` are those of
// `measured`, in its order.
size_t FastestAfter(std::span<const PredictedRun> predicted,
                    const ChoiceErrors& errors,
                    std::span<const size_t> measured,
                    std::span<const double> seconds);

}  // namespace acplan::costmodel
