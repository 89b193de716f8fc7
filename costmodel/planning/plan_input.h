#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "costmodel/execution/execution.h"
#include "costmodel/hardware/system.h"
#include "costmodel/llm/batch_times.h"
#include "costmodel/llm/block_costs.h"
#include "costmodel/llm/memory_needs.h"
#include "costmodel/llm/schedule.h"
#include "costmodel/planning/strategy_plan.h"

namespace acplan::costmodel {

// The input of all steps of planning a strategy. Refers to what it is made
// from.
struct PlanInput {
  const System& system;
  Execution execution;  // PlannedExecution
  const Schedule& schedule;
  const PlannedBlock& block;
  // A plan that takes so many seconds or longer need not be the best.
  double cutoff;

  // Returns the times of a batch, were all blocks to cost so much.
  BatchTimes TimesOf(const BlockCosts& costs) const;
  // Returns the times of a batch where the blocks of every stage have these
  // policies.
  BatchTimes TimesOf(std::span<const PolicyShare> policies) const;

  BlockCosts CostsOf(KeptTensors kept) const;

  // Returns the memory of a stage whose blocks keep `bytes` of a microbatch
  // together, and `most` the one that keeps most.
  MemoryNeeds MemoryOf(int64_t stage, double bytes, double most) const;
  MemoryNeeds MemoryOf(int64_t stage,
                       std::span<const PolicyShare> policies) const;
};

// The times of a batch were all blocks to have one policy.
struct PolicyTimes {
  double block = 0;  // seconds of a microbatch
  double fill = 0;   // of a stage, and of one that lacks a block
  double short_fill = 0;
  double batch = 0;    // without exposed communication of gradients
  double exposed = 0;  // that communication
  // Its parts (DataParallelTimes).
  double comm_of_block = 0;
  double chunk_exposed = 0;
  double tail_exposed = 0;
  double chunk_balance = 0;
  double tail_balance = 0;
  double collisions = 0;  // on top of chunk_balance

  double Fill(const Schedule& schedule, int64_t stage) const {
    return StageLacksBlock(schedule, stage) ? short_fill : fill;
  }
};

PolicyTimes ComputePolicyTimes(const PlanInput& input, const BlockCosts& costs);

}  // namespace acplan::costmodel
