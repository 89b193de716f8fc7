#include "costmodel/calculon/llm/statistics.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "costmodel/calculon/llm/schedule.h"

namespace acplan::costmodel {
namespace {

constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

double Over(double amount, double seconds) {
  return seconds == 0 ? kNone : amount / seconds;
}

// The results from which the statistics are taken.
struct Record {
  const System& system;
  const Execution& execution;
  const Schedule& schedule;
  const Evaluation& evaluation;

  double ForwardSendSize() const {
    return execution.pipeline_par > 1 ? evaluation.block.forward_send_size : 0;
  }

  double DataParallelBandwidth(double window) const {
    if (!(window > 0)) return 0;
    const Network& network = system.networks[execution.data_par_net];
    const double scalar =
        execution.optimizer_sharding
            ? network.Volume(NetworkOperation::kReduceScatter).scalar +
                  network.Volume(NetworkOperation::kAllGather).scalar
            : network.Volume(NetworkOperation::kAllReduce).scalar;
    return schedule.blocks_per_chunk *
           evaluation.times.data_parallel.block_size / window * scalar;
  }

  double StoredActivations() const {
    return execution.activation_recompute == Recompute::kFull
               ? evaluation.block.checkpoint_size
               : evaluation.block.act_storage_space;
  }

  // Returns the seconds of a block in which nothing else uses the first tier of memory.
  double ForwardWindow() const {
    const PassTimes& pass = evaluation.times.forward_pass;
    const double mem_time = evaluation.block.forward.mem_time;
    return std::min(pass.base.without_offload - mem_time,
                    pass.edge.without_offload - mem_time);
  }
  double BackwardWindow() const {
    const PassTimes& pass = evaluation.times.backward_pass;
    const double mem_time = evaluation.block.activation_grad.mem_time +
                            evaluation.block.weight_grad.mem_time;
    return std::min(pass.base.without_offload - mem_time,
                    pass.edge.without_offload - mem_time);
  }

  double OptimizerOffloadBandwidth() const {
    if (!execution.training) return 0;
    return Over(
        evaluation.block.weight_grad_space + evaluation.block.optimizer_space,
        BackwardWindow());
  }

  double OffloadBandwidth() const {
    const double forward =
        Over(evaluation.times.forward_pass.offload_size, ForwardWindow());
    if (!execution.training) return forward;
    const double backward =
        Over(evaluation.times.backward_pass.offload_size, BackwardWindow());
    return forward != forward || backward != backward
               ? kNone
               : std::max(forward, backward);
  }

  double PerfectTime() const {
    return schedule.blocks * schedule.microbatches *
           evaluation.block.useful_flops /
           system.matrix.Engine(execution.datatype).peak();
  }
  double ComputeTime() const {
    const BatchTimes& times = evaluation.times;
    return times.forward + times.backward + times.optimizer;
  }
};

struct Field {
  std::string_view name;
  double (*value)(const Record&);
};

constexpr std::array<Field, kStatistics> kFields = {{
    {"block_fw_flops", [](const Record& r) { return r.evaluation.block.forward.flops; }},
    {"block_fw_flops_time", [](const Record& r) { return r.evaluation.block.forward.flops_time; }},
    {"block_fw_mem_accessed", [](const Record& r) { return r.evaluation.block.forward.mem_accessed; }},
    {"block_fw_mem_time", [](const Record& r) { return r.evaluation.block.forward.mem_time; }},
    {"block_fw_time", [](const Record& r) { return r.evaluation.block.forward.time; }},
    {"baseblock_fw_tp_time", [](const Record& r) { return r.evaluation.block.forward_comm.base_time; }},
    {"edgeblock_fw_tp_time", [](const Record& r) { return r.evaluation.block.forward_comm.edge_time; }},
    {"baseblock_fw_tp_time_exposed", [](const Record& r) { return r.evaluation.block.forward_comm.base_exposed; }},
    {"edgeblock_fw_tp_time_exposed", [](const Record& r) { return r.evaluation.block.forward_comm.edge_exposed; }},
    {"block_re_flops", [](const Record& r) { return r.evaluation.block.recompute.flops; }},
    {"block_re_flops_time", [](const Record& r) { return r.evaluation.block.recompute.flops_time; }},
    {"block_re_mem_accessed", [](const Record& r) { return r.evaluation.block.recompute.mem_accessed; }},
    {"block_re_mem_time", [](const Record& r) { return r.evaluation.block.recompute.mem_time; }},
    {"block_re_time", [](const Record& r) { return r.evaluation.block.recompute.time; }},
    {"baseblock_recomm_time", [](const Record& r) { return r.evaluation.block.repeated_comm.base_time; }},
    {"edgeblock_recomm_time", [](const Record& r) { return r.evaluation.block.repeated_comm.edge_time; }},
    {"baseblock_recomm_time_exposed", [](const Record& r) { return r.evaluation.block.repeated_comm.base_exposed; }},
    {"edgeblock_recomm_time_exposed", [](const Record& r) { return r.evaluation.block.repeated_comm.edge_exposed; }},
    {"block_agrad_flops", [](const Record& r) { return r.evaluation.block.activation_grad.flops; }},
    {"block_agrad_flops_time", [](const Record& r) { return r.evaluation.block.activation_grad.flops_time; }},
    {"block_agrad_mem_accessed", [](const Record& r) { return r.evaluation.block.activation_grad.mem_accessed; }},
    {"block_agrad_mem_time", [](const Record& r) { return r.evaluation.block.activation_grad.mem_time; }},
    {"block_agrad_time", [](const Record& r) { return r.evaluation.block.activation_grad.time; }},
    {"baseblock_agrad_tp_time", [](const Record& r) { return r.evaluation.block.backward_comm.base_time; }},
    {"edgeblock_agrad_tp_time", [](const Record& r) { return r.evaluation.block.backward_comm.edge_time; }},
    {"baseblock_agrad_tp_time_exposed", [](const Record& r) { return r.evaluation.block.backward_comm.base_exposed; }},
    {"edgeblock_agrad_tp_time_exposed", [](const Record& r) { return r.evaluation.block.backward_comm.edge_exposed; }},
    {"block_wgrad_flops", [](const Record& r) { return r.evaluation.block.weight_grad.flops; }},
    {"block_wgrad_flops_time", [](const Record& r) { return r.evaluation.block.weight_grad.flops_time; }},
    {"block_wgrad_mem_accessed", [](const Record& r) { return r.evaluation.block.weight_grad.mem_accessed; }},
    {"block_wgrad_mem_time", [](const Record& r) { return r.evaluation.block.weight_grad.mem_time; }},
    {"block_wgrad_time", [](const Record& r) { return r.evaluation.block.weight_grad.time; }},
    {"block_optim_flops", [](const Record& r) { return r.evaluation.block.optimizer.flops; }},
    {"block_optim_flops_time", [](const Record& r) { return r.evaluation.block.optimizer.flops_time; }},
    {"block_optim_mem_accessed", [](const Record& r) { return r.evaluation.block.optimizer.mem_accessed; }},
    {"block_optim_mem_time", [](const Record& r) { return r.evaluation.block.optimizer.mem_time; }},
    {"block_optim_time", [](const Record& r) { return r.evaluation.block.optimizer.time; }},
    {"baseblock_fw_tp_size", [](const Record& r) { return r.evaluation.block.forward_comm.base_size; }},
    {"edgeblock_fw_tp_size", [](const Record& r) { return r.evaluation.block.forward_comm.edge_size; }},
    {"baseblock_bw_tp_size", [](const Record& r) { return r.evaluation.block.backward_comm.base_size; }},
    {"edgeblock_bw_tp_size", [](const Record& r) { return r.evaluation.block.backward_comm.edge_size; }},
    {"baseblock_recomm_size", [](const Record& r) { return r.evaluation.block.repeated_comm.base_size; }},
    {"edgeblock_recomm_size", [](const Record& r) { return r.evaluation.block.repeated_comm.edge_size; }},
    {"block_fw_pp_size", [](const Record& r) { return r.ForwardSendSize(); }},
    {"block_bw_pp_size", [](const Record& r) { return r.execution.training ? r.ForwardSendSize() : 0.0; }},
    {"block_dp_size", [](const Record& r) { return r.evaluation.times.data_parallel.block_size; }},
    {"tp_bw_overlap_req", [](const Record& r) { return r.evaluation.block.overlap_bandwidth_required; }},
    {"dp_bw_overlap_req_chunk", [](const Record& r) { return r.DataParallelBandwidth(r.evaluation.times.data_parallel.chunk_window); }},
    {"dp_bw_overlap_req_tail", [](const Record& r) { return r.DataParallelBandwidth(r.evaluation.times.data_parallel.tail_window); }},
    {"block_weight_space", [](const Record& r) { return r.evaluation.block.weight_space; }},
    {"block_act_working_space", [](const Record& r) { return r.evaluation.block.act_working_space; }},
    {"block_act_storage_space", [](const Record& r) { return r.evaluation.block.act_storage_space; }},
    {"block_act_checkpoint_size", [](const Record& r) { return r.evaluation.block.checkpoint_size; }},
    {"block_weight_grad_space", [](const Record& r) { return r.evaluation.block.weight_grad_space; }},
    {"block_weight_grad_space_no_sharding", [](const Record& r) { return r.evaluation.block.weight_grad_space_unsharded; }},
    {"block_act_grad_space", [](const Record& r) { return r.evaluation.block.act_grad_space; }},
    {"block_optimizer_space", [](const Record& r) { return r.evaluation.block.optimizer_space; }},
    {"weight_space_with_offload", [](const Record& r) { return r.evaluation.memory.weights.resident; }},
    {"act_space_with_offload", [](const Record& r) { return r.evaluation.memory.activations.resident; }},
    {"act_checkpoint_size_with_offload", [](const Record& r) { return r.execution.training ? r.evaluation.memory.checkpoints.resident : kNone; }},
    {"act_grad_space_with_offload", [](const Record& r) { return r.evaluation.memory.activation_grads; }},
    {"weight_grad_space_with_offload", [](const Record& r) { return r.evaluation.memory.weight_grads.resident; }},
    {"optimizer_space_with_offload", [](const Record& r) { return r.evaluation.memory.optimizer.resident; }},
    {"weight_space", [](const Record& r) { return r.evaluation.memory.weights.all; }},
    {"act_space", [](const Record& r) { return r.evaluation.memory.activations.all; }},
    {"act_checkpoint_size", [](const Record& r) { return r.evaluation.memory.checkpoints.all; }},
    {"act_grad_space", [](const Record& r) { return r.evaluation.memory.activation_grads; }},
    {"weight_grad_space", [](const Record& r) { return r.evaluation.memory.weight_grads.all; }},
    {"optimizer_space", [](const Record& r) { return r.evaluation.memory.optimizer.all; }},
    {"fw_time", [](const Record& r) { return r.evaluation.times.forward; }},
    {"bw_time", [](const Record& r) { return r.evaluation.times.backward; }},
    {"optim_step_time", [](const Record& r) { return r.evaluation.times.optimizer; }},
    {"recompute_time", [](const Record& r) { return r.evaluation.times.recompute; }},
    {"recomm_link_time", [](const Record& r) { return r.evaluation.times.repeated_comm_link; }},
    {"recomm_exposed_time", [](const Record& r) { return r.evaluation.times.repeated_comm_exposed; }},
    {"bubble_time", [](const Record& r) { return r.evaluation.times.bubble; }},
    {"tp_comm_link_time", [](const Record& r) { return r.evaluation.times.tensor_comm_link; }},
    {"pp_comm_link_time", [](const Record& r) { return r.evaluation.times.pipeline_comm; }},
    {"dp_comm_link_time", [](const Record& r) { return r.evaluation.times.data_parallel.link; }},
    {"tp_comm_exposed_time", [](const Record& r) { return r.evaluation.times.tensor_comm_exposed; }},
    {"pp_comm_exposed_time", [](const Record& r) { return r.evaluation.times.pipeline_comm; }},
    {"dp_comm_exposed_time", [](const Record& r) { return r.evaluation.times.data_parallel.exposed; }},
    {"fw_offload_exposed_time", [](const Record& r) { return r.evaluation.times.forward_offload_exposed; }},
    {"bw_offload_exposed_time", [](const Record& r) { return r.evaluation.times.backward_offload_exposed; }},
    {"total_time", [](const Record& r) { return r.evaluation.times.total; }},
    {"act_offload_bw_req", [](const Record& r) { return Over(r.StoredActivations(), r.ForwardWindow()); }},
    {"weight_offload_bw_req", [](const Record& r) { return Over(r.evaluation.block.weight_space, r.ForwardWindow()); }},
    {"optim_offload_bw_req", [](const Record& r) { return r.OptimizerOffloadBandwidth(); }},
    {"offload_mem_bw_req", [](const Record& r) { return r.OffloadBandwidth(); }},
    {"proc_mem_tier1_cap_req", [](const Record& r) { return r.evaluation.memory.tier1; }},
    {"proc_mem_tier2_cap_req", [](const Record& r) { return r.evaluation.memory.tier2; }},
    {"useful_flops", [](const Record& r) { return r.evaluation.block.useful_flops; }},
    {"compute_efficiency", [](const Record& r) { return r.PerfectTime() / r.ComputeTime(); }},
    {"system_efficiency", [](const Record& r) { return r.ComputeTime() / r.evaluation.times.total; }},
    {"total_efficiency", [](const Record& r) { return r.PerfectTime() / r.evaluation.times.total; }},
    {"sample_rate", [](const Record& r) { return SampleRate(r.execution, r.evaluation.times); }},
}};

constexpr std::array<std::string_view, kStatistics> NamesOf(
    const std::array<Field, kStatistics>& fields) {
  std::array<std::string_view, kStatistics> names;
  for (size_t i = 0; i < names.size(); ++i) names[i] = fields[i].name;
  return names;
}

}  // namespace

const std::array<std::string_view, kStatistics> kStatisticNames =
    NamesOf(kFields);

Statistics ComputeStatistics(const Model& model, const System& system,
                             const Execution& execution,
                             const Evaluation& evaluation) {
  const Schedule schedule = ScheduleOf(model, execution);
  const Record record{system, execution, schedule, evaluation};
  Statistics statistics;
  for (size_t i = 0; i < statistics.size(); ++i) {
    statistics[i] = kFields[i].value(record);
  }
  return statistics;
}

double Statistic(const Statistics& statistics, std::string_view name) {
  const auto match = std::ranges::find(kStatisticNames, name);
  return statistics[static_cast<size_t>(match - kStatisticNames.begin())];
}

}  // namespace acplan::costmodel
