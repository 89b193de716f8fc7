#include "costmodel/planning/plan_input.h"

#include <algorithm>

namespace acplan::costmodel {

BatchTimes PlanInput::TimesOf(const BlockCosts& costs) const {
  return ComputeBatchTimes(system, execution, schedule, costs,
                           AllCorrections());
}

BatchTimes PlanInput::TimesOf(std::span<const PolicyShare> policies) const {
  std::vector<BlockShare> shares;
  for (const PolicyShare& policy : policies) {
    shares.push_back(
        {CostsOf(policy.kept), static_cast<double>(policy.blocks)});
  }
  return ComputeBatchTimes(system, execution, schedule, shares,
                           AllCorrections());
}

BlockCosts PlanInput::CostsOf(KeptTensors kept) const {
  return CostsWith(block.costs, block.operators, kept);
}

MemoryNeeds PlanInput::MemoryOf(int64_t stage, double bytes,
                                double most) const {
  return ComputeStageMemoryNeeds(
      execution, StageBlocks(schedule, stage), block.costs,
      {StageMicrobatches(schedule, stage), bytes, most}, AllCorrections());
}

MemoryNeeds PlanInput::MemoryOf(int64_t stage,
                                std::span<const PolicyShare> policies) const {
  double bytes = 0;
  double most = 0;
  for (const PolicyShare& policy : policies) {
    const double each = KeptBytes(block.operators, policy.kept);
    bytes += static_cast<double>(policy.blocks) * each;
    most = std::max(most, each);
  }
  return MemoryOf(stage, bytes, most);
}

PolicyTimes ComputePolicyTimes(const PlanInput& input,
                               const BlockCosts& costs) {
  const Schedule& schedule = input.schedule;
  const BatchTimes times = input.TimesOf(costs);
  const DataParallelTimes& comm = times.data_parallel;
  PolicyTimes result;
  result.block = MeanBlockTime(schedule, times);
  result.fill = StageFillTime(schedule, times, false);
  result.short_fill = StageFillTime(schedule, times, true);
  result.batch = times.total - comm.exposed;
  for (int64_t stage = 1; stage < input.execution.pipeline_par; ++stage) {
    result.batch -= result.Fill(schedule, stage);
  }
  result.exposed = comm.exposed;
  result.comm_of_block = comm.block_time;
  result.chunk_exposed = comm.exposed - comm.block_time - comm.tail_exposed;
  result.tail_exposed = comm.tail_exposed;
  result.chunk_balance = comm.chunk_balance;
  result.tail_balance = comm.tail_balance;
  result.collisions = comm.chunk_collisions;
  return result;
}

}  // namespace acplan::costmodel
