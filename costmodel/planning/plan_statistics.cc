#include "costmodel/planning/plan_statistics.h"

namespace acplan::costmodel {

nlohmann::ordered_json PlanStatistics(const Execution& execution,
                                      const StrategyPlan& plan) {
  const BatchTimes& times = plan.times;
  const MemoryNeeds& memory = FullestMemory(plan);
  const double batch = static_cast<double>(execution.batch_size);
  return {{"sample_rate", batch / times.total},
          {"sample_rate_bound", batch / plan.bound},
          {"total_time", times.total},
          {"fw_time", times.forward},
          {"bw_time", times.backward},
          {"optim_step_time", times.optimizer},
          {"recompute_time", times.recompute},
          {"recomm_exposed_time", times.repeated_comm_exposed},
          {"fw_offload_exposed_time", times.forward_offload_exposed},
          {"bw_offload_exposed_time", times.backward_offload_exposed},
          {"bubble_time", times.bubble},
          {"tp_comm_exposed_time", times.tensor_comm_exposed},
          {"pp_comm_exposed_time", times.pipeline_comm},
          {"dp_comm_exposed_time", times.data_parallel.exposed},
          {"proc_mem_tier1_cap_req", memory.tier1},
          {"proc_mem_tier2_cap_req", memory.tier2}};
}

}  // namespace acplan::costmodel
