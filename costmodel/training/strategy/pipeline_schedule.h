#pragma once

#include <cstddef>
#include <vector>

#include "costmodel/training/strategy/training_strategy.h"

namespace acplan::costmodel {

// What stages of a pipeline that are alike take for one microbatch, seconds.
struct ScheduledStages {
  double total = 0;
  double backward = 0;  // of that
  double weights = 0;   // of that, for gradients of weights
  double count = 0;     // of stages
};

// Seconds that the slowest stage waits for others while the pipeline fills and
// drains. With p stages, F of a forward pass, B of the gradients of activations
// and W of those of weights:
//
//   1F1B, interleaved   (p - 1) (F + B + W) / chunks
//   ZB-H1               (p - 1) (F + B - W) / chunks  (Qi et al. 2024, table 1)
//   ZB-V                (p - 1) (F + B - 2 W) / 2     (the same, of half stages)
//   DualPipe            (p / 2 - 1) (F + 2 (B + W) - 3 W), as a forward runs beside
//                       a backward pass (DeepSeek-V3 report, table 2)
//
// none below 0; of stages that differ, the sum over all but the one that adds most in
// place of (p - 1), which rises with what each stage takes. Layers that run again
// count as forward passes do.
double BubbleSeconds(const TrainingStrategy& strategy,
                     const std::vector<ScheduledStages>& stages);

// Passes of a stage in an iteration: microbatches, and in DualPipe, where a stage
// holds two parts of the model that a microbatch passes through one of, half.
double PassesOfStage(const TrainingStrategy& strategy);

// Microbatches whose activations stage `index` holds when it holds most, in units
// of all that the stage computes: p - i in 1F1B and ZB-H1; with v > 1 chunks
// (2 (p - i - 1) + (v - 1) p + 1) / v; p in ZB-V; (p + 1) / 2 in DualPipe.
double MicrobatchesInFlight(const TrainingStrategy& strategy, size_t index);

}  // namespace acplan::costmodel
