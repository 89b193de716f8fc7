#pragma once

#include <atomic>
#include <cstdint>
#include <limits>
#include <vector>

#include "costmodel/training/training_job.h"

namespace acplan::costmodel {

// The values that a search tries of each degree, ascending. Divisors that do not
// fit each other, the model or the batch are left out by CheckStrategy's and
// CheckStatedStrategy's rules.
struct StrategySpace {
  std::vector<int64_t> tensor = {};
  std::vector<int64_t> pipeline = {};
  std::vector<int64_t> chunks = {};
  std::vector<int64_t> context = {};
  std::vector<int64_t> expert = {};
  std::vector<int64_t> zero = {};
  std::vector<int64_t> microbatch = {};
  // kFull stands for all numbers of layers of a stage that are recomputed.
  std::vector<Recomputation> recomputation = {};
};

// All of it: tensor parallelism within NVLink's domain, pipelines and chunks whose
// product divides the layers, or the layers with embedding and logits; context and
// expert parallelism; ZeRO 0, 1 and 3; microbatches of 1 to 16 sequences;
// recomputation of nothing, of the attention core, by torchtitan's rule, of the
// first N layers of each stage, and by the best plan of each stage.
StrategySpace WholeSpace(const TrainingJob& job);

struct RankedStrategy {
  TrainingStrategy strategy = {};
  double seconds = 0;
  double bytes = 0;  // of the stage that holds most
};

struct StrategySearch {
  std::vector<RankedStrategy> best = {};  // the fastest first, ties by memory
  int64_t strategies = 0;  // that are legal, each number of layers one
  int64_t evaluated = 0;   // of these; the others are decided by monotonicity
  int64_t fitting = 0;     // of those evaluated
  int64_t planned = 0;  // of those: a bound did not decide that they are slower
  int64_t unplanned = 0;  // that a bound did not decide when planning ended
  // Unless a plan that could be among the best is not, or was not made.
  bool is_proven = true;
  double core_seconds = 0;
};

// When planning ends; all else is done in any case. A plan that is begun is ended.
struct PlanningLimits {
  double seconds = std::numeric_limits<double>::infinity();
  const std::atomic<bool>* interrupted = nullptr;  // by a signal, say
};

// The `count` fastest strategies of the space whose stages all fit `budget` bytes:
// exact, every legal strategy is computed or proven slower than one that is there.
// `job` says all that the space does not. Of strategies that differ in the number
// of recomputed layers alone, the fastest counts; a plan that recomputes nothing is
// not listed beside the same strategy without recomputation. Uses all cores; the answer does
// not depend on how many, unless a limit ends it.
StrategySearch SearchStrategies(const TrainingJob& job,
                                const StrategySpace& space, double budget,
                                size_t count,
                                const PlanningLimits& limits = {});

}  // namespace acplan::costmodel
