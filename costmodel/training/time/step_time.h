#pragma once

#include <span>
#include <vector>

#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/time/unit_times.h"

namespace acplan::costmodel {

// The time of an iteration in parts, seconds.
struct StepTime {
  double compute = 0;    // of the slowest stage, for all microbatches
  double recompute = 0;  // the part of compute for recomputation
  // Exposed communication inside of layers, and messages.
  double communication = 0;
  // The part of communication inside of layers, by kind.
  ExposedTime exposed = {};
  double messages = 0;  // the part of communication between stages
  double host = 0;      // the GPU's wait for launches
  double bubble = 0;    // the wait in the pipeline
  double data = 0;      // exposed communication of gradients and parameters
  double optimizer = 0;
  double other = 0;  // a constant for each iteration

  double Total() const {
    return compute + communication + host + bubble + data + optimizer + other;
  }
};

// Predicts an iteration. A strategy without a microbatch gets that of
// WithFastestMicrobatch. Throws InputError if the GPU lacks the precision.
StepTime PredictStepTime(const TrainingJob& job);

// Throws InputError if the GPU lacks the precision.
void RequirePrecision(const TrainingJob& job);

// Computes the time of an iteration from values that were computed before: `units` are
// those of the job, `stages` the kinds of its stages. `recomputation`, indexed by kind, is the
// recomputation of its layers for a microbatch, if a plan gives it. Meant for searches;
// checks nothing.
StepTime CombineStepTime(const TrainingJob& job, const UnitTimes& units,
                         const std::vector<StageKind>& stages,
                         std::span<const PassTime> recomputation = {});

// Returns the same job with a microbatch: its own, or else the fastest one of 1, 2, 4 and 8
// that divides a rank's sequences. Memory is not checked.
TrainingJob WithFastestMicrobatch(const TrainingJob& job);

}  // namespace acplan::costmodel
