#pragma once

#include <cstddef>
#include <vector>

#include "costmodel/training/strategy/training_strategy.h"

namespace acplan::costmodel {

// The seconds that equal stages of a pipeline take for one microbatch.
struct ScheduledStages {
  double total = 0;
  double backward = 0;  // of total
  double weights = 0;   // of backward, for gradients of weights
  double count = 0;     // the number of stages
};

// Returns the seconds that the slowest stage waits for others while the pipeline fills and
// drains. With p stages, F of a forward pass, B of the gradients of activations and W of
// those of weights:
//
//   1F1B, interleaved   (p - 1) (F + B + W) / chunks
//   ZB-H1               (p - 1) (F + B - W) / chunks  (Qi et al. 2024, table 1)
//   ZB-V                (p - 1) (F + B - 2 W) / 2     (the same, of half stages)
//   V-Half              (p - 1) (F + B + W) / 2       (Qi et al. 2024b, table 2)
//   V-Min               (p - 1) (F + B + W) 2 / 3, and 3 max(F, B, W) - (F + B + W) in each
//                       pass: the three take turns, each as long as the longest (ibid.)
//   DualPipe            (p / 2 - 1) (F + 2 (B + W) - 3 W), as a forward runs beside
//                       a backward pass (DeepSeek-V3 report, table 2)
//
// or 0 if that is negative. If stages differ, (p - 1) is replaced by the sum over all
// stages except the one that adds most, which rises with the time of each stage. Recomputed
// layers count like forward passes.
double BubbleSeconds(const TrainingStrategy& strategy,
                     const std::vector<ScheduledStages>& stages);

// Returns the passes of a stage in an iteration: the microbatches, or half of them in
// DualPipe, in which a stage holds two parts of the model and a microbatch passes through
// one of them.
double PassesOfStage(const TrainingStrategy& strategy);

// Returns the number of microbatches whose activations stage `index` holds at its peak, in
// units of everything that the stage computes: p - i in 1F1B and ZB-H1; with v > 1 chunks
// (2 (p - i - 1) + (v - 1) p + 1) / v; p in ZB-V, (p + 2) / 2 in V-Half and (p + 4) / 3 in
// V-Min, rounded down; (p + 1) / 2 in DualPipe.
double MicrobatchesInFlight(const TrainingStrategy& strategy, size_t index);

}  // namespace acplan::costmodel
