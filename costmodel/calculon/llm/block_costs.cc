#include "costmodel/calculon/llm/block_costs.h"

#include <algorithm>

namespace acplan::costmodel {
namespace {

void AddWork(StageCosts& costs, const Work& work, const WorkTime& time) {
  costs.flops += work.flops;
  costs.flops_time += time.flops;
  costs.mem_accessed += work.mem_accessed;
  costs.mem_time += time.mem;
}

// A sum of the costs of a block's layers, stage by stage.
class BlockSum {
 public:
  BlockSum(const LayerHardware& hardware, bool is_training)
      : hardware_(hardware), is_training_(is_training) {}

  void Add(const Layer& layer) {
    const WorkTime forward = TimeWork(layer, Stage::kForward, hardware_);
    AddWork(costs_.forward, layer.At(Stage::kForward), forward);
    const StageTimes forward_times = AddStage(
        layer, Stage::kForward, forward, costs_.forward, costs_.forward_comm);
    RequireBandwidth(layer, Stage::kForward, forward);
    forward_useful_ += layer.At(Stage::kForward).flops;
    if (is_training_) AddBackward(layer, forward_times);
    AddSpace(layer);
  }

  BlockCosts Costs() const {
    BlockCosts costs = costs_;
    costs.useful_flops = forward_useful_;
    if (is_training_) costs.useful_flops += backward_useful_;
    return costs;
  }

 private:
  struct StageTimes {
    ProcessingTime base;
    ProcessingTime edge;
  };

  bool PlacesDiffer() const {
    return hardware_.comm_type == TensorCommType::kScatteredSend;
  }

  StageTimes AddStage(const Layer& layer, Stage stage, const WorkTime& work,
                      StageCosts& costs, StageComm& comm) {
    StageTimes times;
    if (layer.comm.kind == LayerComm::Kind::kNone) {
      times.base = times.edge = TimeProcessing(layer, work, 0, hardware_);
      costs.time += times.base.run;
      return times;
    }
    const double base =
        NetTime(layer, stage, BlockPlace::kBase, work, hardware_);
    const double edge =
        PlacesDiffer()
            ? NetTime(layer, stage, BlockPlace::kEdge, work, hardware_)
            : base;
    times.base = TimeProcessing(layer, work, base, hardware_);
    times.edge = PlacesDiffer() ? TimeProcessing(layer, work, edge, hardware_)
                                : times.base;
    costs.time += times.base.run;
    comm.base_size += CommBytes(layer, stage, BlockPlace::kBase, hardware_);
    comm.edge_size += CommBytes(layer, stage, BlockPlace::kEdge, hardware_);
    comm.base_time += base;
    comm.edge_time += edge;
    AddExposed(layer, times, comm);
    return times;
  }

  // Adds exposed times. Overlapped layers report the exposed time of a middle block for
  // both places.
  void AddExposed(const Layer& layer, const StageTimes& times,
                  StageComm& comm) const {
    const bool by_place = layer.comm.kind == LayerComm::Kind::kSeparate;
    comm.base_exposed += times.base.exposed;
    comm.edge_exposed += by_place ? times.edge.exposed : times.base.exposed;
  }

  void AddBackward(const Layer& layer, const StageTimes& forward_times) {
    const WorkTime activation =
        TimeWork(layer, Stage::kActivationGradient, hardware_);
    const WorkTime weight = TimeWork(layer, Stage::kWeightGradient, hardware_);
    const WorkTime optimizer =
        TimeWork(layer, Stage::kOptimizerStep, hardware_);
    if (layer.is_recomputed) AddRecompute(forward_times);
    AddWork(costs_.weight_grad, layer.At(Stage::kWeightGradient), weight);
    AddRepeated(layer, weight, forward_times);
    AddWork(costs_.activation_grad, layer.At(Stage::kActivationGradient),
            activation);
    AddStage(layer, Stage::kActivationGradient, activation,
             costs_.activation_grad, costs_.backward_comm);
    RequireBandwidth(layer, Stage::kActivationGradient, activation);
    AddWork(costs_.optimizer, layer.At(Stage::kOptimizerStep), optimizer);
    costs_.optimizer.time += TimeProcessing(layer, optimizer, 0, hardware_).run;
    backward_useful_ += layer.At(Stage::kActivationGradient).flops +
                        layer.At(Stage::kWeightGradient).flops +
                        layer.At(Stage::kOptimizerStep).flops;
  }

  // Adds the work of all layers so far to recomputation, as Calculon does.
  void AddRecompute(const StageTimes& forward_times) {
    AddWork(costs_.recompute,
            {costs_.forward.flops, costs_.forward.mem_accessed},
            {costs_.forward.flops_time, costs_.forward.mem_time});
    costs_.recompute.time += forward_times.base.run;
  }

  // Adds the weight gradients' stage and the communication that is repeated in it. For
  // overlapped layers the exposed time of the forward pass counts.
  void AddRepeated(const Layer& layer, const WorkTime& work,
                   const StageTimes& forward_times) {
    StageComm comm;
    StageTimes times =
        AddStage(layer, Stage::kWeightGradient, work, costs_.weight_grad, comm);
    if (!layer.comm.is_repeated) return;
    if (layer.comm.kind == LayerComm::Kind::kOverlapped) times = forward_times;
    StageComm& sum = costs_.repeated_comm;
    sum.base_size += comm.base_size;
    sum.edge_size += comm.edge_size;
    sum.base_time += comm.base_time;
    sum.edge_time += comm.edge_time;
    AddExposed(layer, times, sum);
  }

  void RequireBandwidth(const Layer& layer, Stage stage, const WorkTime& work) {
    if (layer.comm.kind != LayerComm::Kind::kOverlapped) return;
    for (const BlockPlace place : {BlockPlace::kBase, BlockPlace::kEdge}) {
      costs_.overlap_bandwidth_required =
          std::max(costs_.overlap_bandwidth_required,
                   RequiredBandwidth(layer, stage, place, work, hardware_));
    }
  }

  void AddSpace(const Layer& layer) {
    costs_.weight_space += layer.weight_bytes;
    if (!layer.reuses_activation) {
      costs_.act_working_space += layer.activation_bytes;
    }
    costs_.act_storage_space += layer.activation_bytes;
    if (!is_training_) return;
    if (!layer.stores_output) costs_.act_storage_space -= layer.output_bytes;
    if (!layer.stores_activation) {
      costs_.act_storage_space -= layer.activation_bytes;
    }
    costs_.weight_grad_space += layer.weight_grad_bytes;
    costs_.weight_grad_space_unsharded += layer.weight_grad_unsharded_bytes;
    costs_.act_grad_space += layer.activation_grad_bytes;
    costs_.optimizer_space += layer.optimizer_bytes;
  }

  const LayerHardware& hardware_;
  bool is_training_;
  BlockCosts costs_;
  double forward_useful_ = 0;
  double backward_useful_ = 0;
};

double SendSize(const BlockShape& shape, const Execution& execution) {
  const double elements =
      execution.tensor_par_comm_type == TensorCommType::kAllReduce
          ? shape.activation
          : shape.rows / shape.tensor_par * shape.hidden;
  return elements * BytesPerElement(execution.datatype);
}

double CheckpointSize(const BlockShape& shape, const Execution& execution) {
  if (!execution.training ||
      execution.activation_recompute != Recompute::kFull) {
    return 0;
  }
  return shape.activation * BytesPerElement(execution.datatype);
}

}  // namespace

LayerHardware HardwareOf(const System& system, const Execution& execution) {
  return {.matrix = &system.matrix.Engine(execution.datatype),
          .vector = &system.vector.Engine(execution.datatype),
          .mem1 = &system.mem1.bandwidth,
          .network = &system.networks[execution.tensor_par_net],
          .is_roofline = system.is_roofline,
          .bytes_per_element = BytesPerElement(execution.datatype),
          .peers = static_cast<double>(execution.tensor_par),
          .comm_type = execution.tensor_par_comm_type,
          .overlap = execution.tensor_par_overlap};
}

BlockCosts ComputeBlockCosts(const Model& model, const System& system,
                             const Execution& execution) {
  const LayerHardware hardware = HardwareOf(system, execution);
  const Block block = BuildBlock(model, execution);
  BlockSum sum(hardware, execution.training);
  for (const Layer& layer : block.layers()) sum.Add(layer);
  BlockCosts costs = sum.Costs();
  const BlockShape shape = ShapeOf(model, execution);
  costs.checkpoint_size = CheckpointSize(shape, execution);
  costs.forward_send_size = SendSize(shape, execution);
  if (execution.activation_recompute == Recompute::kFull) {
    costs.act_storage_space = 0;
  }
  return costs;
}

}  // namespace acplan::costmodel
