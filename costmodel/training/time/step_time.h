#pragma once

#include <span>
#include <vector>

#include "costmodel/training/strategy/stage_layout.h"
#include "costmodel/training/time/unit_times.h"

namespace acplan::costmodel {

// The time of an iteration in parts, seconds.
struct StepTime {
  double compute = 0;    // of the slowest stage, all microbatches
  double recompute = 0;  // of that, made again
  double sent = 0;       // exposed communication inside of layers, and messages
  ExposedTime exposed = {};  // of that, inside of layers, by kind
  double messages = 0;       // of that, between stages
  double host = 0;           // that the GPU waits for launches
  double bubble = 0;         // of the pipeline
  double data = 0;  // exposed communication of gradients and parameters
  double optimizer = 0;
  double other = 0;  // of an iteration, whatever it computes

  double Total() const {
    return compute + sent + host + bubble + data + optimizer + other;
  }
};

// Predicts an iteration; of a strategy without a microbatch, the fastest
// microbatch that fits (1, 2, 4, ... which divide). Throws InputError where the
// GPU lacks the precision.
StepTime PredictStepTime(const TrainingJob& job);

// Throws InputError where the GPU lacks the precision.
void RequirePrecision(const TrainingJob& job);

// The same of what was computed before: `units` are those of the job, `stages` the
// kinds of its stages. `again`, one a kind, is what its layers run again of a
// microbatch, where a plan says it. For searches; checks nothing.
StepTime CombineStepTime(const TrainingJob& job, const UnitTimes& units,
                         const std::vector<StageKind>& stages,
                         std::span<const PassTime> again = {});

// The same job with the microbatch (and, where `chunks` may vary, no more) that is
// fastest.
TrainingJob WithFastestMicrobatch(const TrainingJob& job);

}  // namespace acplan::costmodel
