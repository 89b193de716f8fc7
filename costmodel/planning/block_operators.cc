#include "costmodel/planning/block_operators.h"

#include <fmt/format.h>

#include <span>

namespace acplan::costmodel {
namespace {

StageCosts Difference(const StageCosts& a, const StageCosts& b) {
  return {a.flops - b.flops, a.flops_time - b.flops_time,
          a.mem_accessed - b.mem_accessed, a.mem_time - b.mem_time,
          a.time - b.time};
}

void Add(StageCosts& sum, const StageCosts& costs) {
  sum.flops += costs.flops;
  sum.flops_time += costs.flops_time;
  sum.mem_accessed += costs.mem_accessed;
  sum.mem_time += costs.mem_time;
  sum.time += costs.time;
}

void Add(StageComm& sum, const StageComm& comm) {
  sum.base_size += comm.base_size;
  sum.edge_size += comm.edge_size;
  sum.base_time += comm.base_time;
  sum.edge_time += comm.edge_time;
  sum.base_exposed += comm.base_exposed;
  sum.edge_exposed += comm.edge_exposed;
}

RecomputeCosts CostsOfAgain(Layer layer, bool computes, bool communicates,
                            const LayerHardware& hardware) {
  layer.is_recomputed = false;
  layer.comm.is_repeated = false;
  const BlockCosts once = SumLayers({&layer, 1}, hardware, true);
  layer.is_recomputed = computes;
  layer.comm.is_repeated = communicates;
  const BlockCosts repeated = SumLayers({&layer, 1}, hardware, true);
  return {repeated.recompute,
          Difference(repeated.weight_grad, once.weight_grad),
          repeated.repeated_comm};
}

// Turns a block into operators, layer by layer.
class Lister {
 public:
  Lister(const LayerHardware& hardware, std::span<const Layer> layers)
      : hardware_(hardware), layers_(layers) {}

  BlockOperators List() {
    for (size_t i = 0; i < layers_.size(); ++i) AddLayer(static_cast<int>(i));
    return std::move(block_);
  }

 private:
  static constexpr int kInput = -1;

  bool IsGathering(const Layer& layer) const {
    return layer.comm.kind == LayerComm::Kind::kOverlapped &&
           !layer.comm.is_conjugate &&
           hardware_.comm_type == TensorCommType::kScattered;
  }

  // The operator whose output a layer reads.
  int InputOf(const Layer& layer, int which) const {
    const int source = layer.sources[which];
    if (source == kBlockInput) return kInput;
    if (!layer.reads_gathered_input) return last_operators_[source];
    const int gather = last_operators_[source] - 1;
    return IsGathering(layers_[source]) ? gather : InputOf(layers_[source], 0);
  }

  int AddOperator(int index, Operator::Kind kind, std::vector<int> inputs,
                  const RecomputeCosts& costs) {
    std::erase(inputs, kInput);
    block_.operators.push_back({.layer = index,
                                .kind = kind,
                                .name = layers_[index].name,
                                .inputs = std::move(inputs),
                                .recompute = costs});
    return static_cast<int>(block_.operators.size()) - 1;
  }

  // What is kept twice counts twice.
  void Keep(int maker, double bytes, bool is_required) {
    if (bytes <= 0) return;
    if (maker == kInput) {
      block_.input_bytes += bytes;
      return;
    }
    int& output = block_.operators[maker].output;
    if (output < 0) output = AddTensor({.maker = maker, .is_required = false});
    block_.tensors[output].bytes += bytes;
    block_.tensors[output].is_required |= is_required;
  }

  int AddTensor(const KeepableTensor& tensor) {
    block_.tensors.push_back(tensor);
    return static_cast<int>(block_.tensors.size()) - 1;
  }

  void AddLayer(int index) {
    const Layer& layer = layers_[index];
    std::vector<int> inputs = {InputOf(layer, 0)};
    if (layer.sources[1] != kNoLayer) inputs.push_back(InputOf(layer, 1));
    const bool is_gathering = IsGathering(layer);
    if (is_gathering) {
      const int source = inputs[0];
      const int gather =
          AddOperator(index, Operator::Kind::kGather, inputs,
                      CostsOfAgain(layer, false, true, hardware_));
      Keep(gather, layer.activation_bytes, true);
      Keep(source, layer.activation_bytes / hardware_.peers, false);
      inputs = {gather};
    }
    const bool communicates =
        layer.comm.kind != LayerComm::Kind::kNone && !is_gathering;
    const bool computes = layer.comm.kind != LayerComm::Kind::kSeparate;
    const int made =
        AddOperator(index, Operator::Kind::kLayer, inputs,
                    CostsOfAgain(layer, computes, communicates, hardware_));
    last_operators_.push_back(made);
    if (!is_gathering) KeepInputs(layer, made, inputs);
  }

  void KeepInputs(const Layer& layer, int made,
                  const std::vector<int>& inputs) {
    if (!layer.stores_activation || layer.reuses_activation) return;
    if (layer.makes_activation) {
      block_.operators[made].mask = AddTensor(
          {.maker = made, .is_mask = true, .bytes = layer.activation_bytes});
    } else if (layer.first_input_bytes > 0) {
      Keep(inputs[0], layer.first_input_bytes, true);
      Keep(inputs[1], layer.activation_bytes - layer.first_input_bytes, true);
    } else {
      // What is gathered is needed; what it is gathered from, only for that.
      Keep(inputs[0], layer.activation_bytes,
           layer.comm.kind != LayerComm::Kind::kSeparate);
    }
  }

  const LayerHardware& hardware_;
  std::span<const Layer> layers_;
  std::vector<int> last_operators_;  // of each layer
  BlockOperators block_;
};

}  // namespace

Execution PlannedExecution(const Execution& execution) {
  Execution planned = execution;
  planned.activation_recompute = Recompute::kNone;
  planned.seq_par_ag_redo = false;
  return planned;
}

BlockOperators ListOperators(const Model& model, const System& system,
                             const Execution& execution) {
  const Corrections corrections = AllCorrections();
  const Execution planned = PlannedExecution(execution);
  const LayerHardware hardware = HardwareOf(system, planned, corrections);
  const Block block = BuildBlock(model, planned, corrections);
  return Lister(hardware, block.layers()).List();
}

std::vector<bool> RunsAgain(const BlockOperators& block, KeptTensors kept) {
  std::vector<bool> runs(block.operators.size(), false);
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    const KeepableTensor& tensor = block.tensors[i];
    if (tensor.is_required && !IsKept(kept, static_cast<int>(i))) {
      runs[tensor.maker] = true;
    }
  }
  for (size_t i = block.operators.size(); i-- > 0;) {
    if (!runs[i]) continue;
    for (const int input : block.operators[i].inputs) {
      if (!IsKept(kept, block.operators[input].output)) runs[input] = true;
    }
  }
  return runs;
}

double KeptBytes(const BlockOperators& block, KeptTensors kept) {
  double bytes = block.input_bytes;
  for (size_t i = 0; i < block.tensors.size(); ++i) {
    if (IsKept(kept, static_cast<int>(i))) bytes += block.tensors[i].bytes;
  }
  return bytes;
}

BlockCosts CostsWith(const BlockCosts& costs, const BlockOperators& block,
                     KeptTensors kept) {
  BlockCosts changed = costs;
  changed.act_storage_space = KeptBytes(block, kept);
  const std::vector<bool> runs = RunsAgain(block, kept);
  for (size_t i = 0; i < runs.size(); ++i) {
    if (!runs[i]) continue;
    const RecomputeCosts& repeated = block.operators[i].recompute;
    Add(changed.recompute, repeated.recompute);
    Add(changed.weight_grad, repeated.weight_grad);
    Add(changed.repeated_comm, repeated.repeated_comm);
  }
  return changed;
}

std::string TensorName(const BlockOperators& block, int tensor) {
  const KeepableTensor& kept = block.tensors[tensor];
  const Operator& maker = block.operators[kept.maker];
  const std::string_view what = kept.is_mask ? " mask"
                                : maker.kind == Operator::Kind::kGather
                                    ? " gathered input"
                                    : "";
  return fmt::format("{}{}", maker.name, what);
}

}  // namespace acplan::costmodel
