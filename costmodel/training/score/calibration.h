#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "costmodel/training/score/score.h"

namespace acplan::costmodel {

// A few runs of one's own give factors. They multiply the times of everything that a GPU
// computes, the times of everything that it sends, and the host's.
struct Calibration {
  double computation = 1;
  double communication = 1;
  double host = 1;
  // The mean errors of the runs without the calibration, and of each run with the
  // calibration that the other runs give (of a single run: its error after calibration).
  double error_before = 0;
  double error_after = 0;
  size_t runs = 0;

  bool IsOneFactor() const {
    return computation == communication && computation == host;
  }
};

Accelerator WithCalibration(Accelerator gpu, const Calibration& calibration);
SoftwareStack WithCalibration(SoftwareStack stack,
                              const Calibration& calibration);
// Returns the systems with all GPUs and software calibrated.
TrainingSystems WithCalibration(TrainingSystems systems,
                                const Calibration& calibration);

// Returns the calibration from some runs, each with a job. One factor for all parts, drawn
// to 1 as if one more run had been predicted right. From three runs on, a factor for each
// part is tried, drawn to the one factor. Each counts only if the error of each run, with
// the factors that the others give, is a tenth less than with what is simpler; the answer is
// 1 if no factor does.
Calibration Calibrate(std::span<const TrainingRun> runs);

// Reads the runs of a table and calibrates with those that have a job. Throws InputError if
// there is none.
Calibration CalibrateToTable(const graph::CsvTable& table,
                             const TrainingSystems& systems);

// Errors of runs that are predicted after a calibration with `runs` others of their stack.
struct CalibrationScore {
  size_t runs = 0;
  size_t predictions = 0;
  double before = 0;  // mean errors, averaged over sources
  double after = 0;
};

// Returns the errors with 1 to 5 runs. A run's stack is its source, GPU and precision and
// whether it has experts.
std::vector<CalibrationScore> ScoreCalibrations(
    const std::vector<TrainingRun>& runs);

}  // namespace acplan::costmodel
