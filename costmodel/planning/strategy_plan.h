#pragma once

#include <cstdint>
#include <limits>
#include <vector>

#include "costmodel/application/model.h"
#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/llm/batch_times.h"
#include "costmodel/llm/block_costs.h"
#include "costmodel/llm/fit.h"
#include "costmodel/llm/memory_needs.h"
#include "costmodel/llm/schedule.h"
#include "costmodel/planning/block_policies.h"

namespace acplan::costmodel {

// Blocks that keep the same of each microbatch.
struct PolicyShare {
  KeptTensors kept = 0;
  int64_t blocks = 0;
};

// A stage of the pipeline, from 0, with what it keeps and recomputes.
struct StagePlan {
  int64_t stage = 0;
  int64_t blocks = 0;
  double in_flight = 0;                    // microbatches
  std::vector<PolicyShare> policies = {};  // what keeps least first
  MemoryNeeds memory = {};
  double seconds = 0;            // of a microbatch, forward and backward
  double recompute_seconds = 0;  // of those, more than if all were kept: less
                                 // than none where offloading that costs more
};

// Times and rates that differ by a smaller share are the same, summed in another
// order.
inline constexpr double kRateTolerance = 1e-9;

// A checkpointing plan for a strategy, all stages together.
struct StrategyPlan {
  Verdict verdict;  // kMem1, kMem2: no plan fits
  // Where no plan fits, what keeps least, with the memory that it takes.
  std::vector<StagePlan> stages;
  BatchTimes times;  // bubble and total are of the plan
  double bound = 0;  // seconds: no plan is faster

  bool IsOptimal() const { return times.total <= bound * (1 + kRateTolerance); }
};

// Returns the memory of the stage that takes most of the first tier. There is a
// stage.
const MemoryNeeds& FullestMemory(const StrategyPlan& plan);

// A block of an execution, and what it may keep.
struct PlannedBlock {
  BlockCosts costs;  // where everything is kept
  BlockOperators operators;
  // Seconds of each operator that runs again; where one takes longer in some
  // blocks of a chunk than in others, those of both.
  std::vector<PolicyCosts> seconds;
  std::vector<BlockPolicy> policies;     // by these
  std::vector<BlockCosts> policy_costs;  // of each
};

// `execution` passed CheckFit. What it depends on of the execution: BlockCosts
// (llm/block_costs.h) and the blocks of a chunk.
PlannedBlock PlanBlock(const Model& model, const System& system,
                       const Execution& execution);

// Data: an execution; of each block the policies of block_policies.h, each with
//   the seconds t of a microbatch, offloading that nothing hides included, and
//   the bytes b that it keeps; of stage s its blocks B(s) and the microbatches
//   in flight f(s) (schedule.h); the capacity of both tiers.
// Variables: a policy for each block of each stage.
// Minimise the seconds of a batch: those of stage 0 over all microbatches, with
//   its bubble, in which each stage s > 0 takes its own StageFillTime
//   (batch_times.h), the mean over its blocks. Gradients' communication that
//   computing hides, hides behind recomputation too.
// Subject to: working space + f(s) sum b - max b + states <= capacity in each
//   stage (memory_needs.h).
// Stages after the first hold no more and need no less time than it can, so
// that the first is the slowest and the others are least on their own. Where
// gradients' communication is exposed, the first is chosen for the sum of both,
// with and without that term; each choice bounds what is possible. As what is
// exposed comes in jumps, other policies for one block, or for all that share
// one, are then tried while that helps.
// All corrections are on; the execution's activation_recompute and
// seq_par_ag_redo do not matter. `execution.training` is true.
StrategyPlan PlanStrategy(const Model& model, const System& system,
                          const Execution& execution);

// As above, of an execution that passed CheckFit and its PlanBlock. A plan that
// takes `cutoff` seconds or longer need not be the best.
StrategyPlan PlanWithBlock(
    const System& system, const Execution& execution, const Schedule& schedule,
    const PlannedBlock& block,
    double cutoff = std::numeric_limits<double>::infinity());

// Seconds that no plan of an execution goes below: neither recomputation nor
// exposed offloading of activations. `costs`: PlannedBlock's.
double LeastBatchTime(const System& system, const Execution& execution,
                      const Schedule& schedule, const BlockCosts& costs);

}  // namespace acplan::costmodel
