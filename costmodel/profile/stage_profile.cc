#include "costmodel/profile/stage_profile.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "costmodel/llm/block.h"
#include "costmodel/llm/layer_listing.h"
#include "costmodel/llm/schedule.h"
#include "graph/base/input_error.h"

namespace acplan::costmodel {
namespace {

constexpr int64_t kMostBlocks = 4096;
constexpr double kMostBytes = 9007199254740992;
constexpr double kMostMs = 1e18;

int64_t Bytes(double bytes) {
  if (!(bytes <= kMostBytes)) {
    throw InputError(fmt::format(
        "a profile holds at most 2^53 bytes, the stage has {:.4g}", bytes));
  }
  return std::llround(bytes);
}

struct PlaceMs {
  double forward = 0;
  double backward = 0;
};

// A layer of a block, for a microbatch.
struct LayerCosts {
  const Layer* layer = nullptr;
  double made = 0;         // bytes that saving it takes
  double kept_inside = 0;  // of them, what autograd keeps besides the result
  double kept_result = 0;  // what autograd keeps of the result
  bool is_view_like = false;
  bool is_random = false;
  bool is_in_place = false;  // on the result of the one before
  PlaceMs base = {};
  PlaceMs edge = {};
};

// Layers [begin, end) of a block.
struct Range {
  size_t begin = 0;
  size_t end = 0;
};

struct BlockLayout {
  Range core;
  Range attention;
  Range mlp;
};

size_t IndexOf(std::span<const Layer> layers, std::string_view name) {
  return static_cast<size_t>(std::ranges::find(layers, name, &Layer::name) -
                             layers.begin());
}

BlockLayout LayoutOf(std::span<const Layer> layers) {
  const size_t mlp = IndexOf(layers, "MlpBlock_Fork");
  return {.core = {IndexOf(layers, "AttnBlock_Multihead_Key_Query"),
                   IndexOf(layers, "AttnBlock_Multihead_Attn") + 1},
          .attention = {0, mlp},
          .mlp = {mlp, layers.size()}};
}

bool IsDropOut(const Layer& layer) { return layer.name.ends_with("DropOut"); }

bool IsFork(const Layer& layer) { return layer.outputs == 0; }

// Column-parallel, and keeps what it gathers.
bool KeepsGatheredInput(const Layer& layer, const LayerHardware& hardware) {
  return layer.comm.kind == LayerComm::Kind::kOverlapped &&
         !layer.comm.is_conjugate && hardware.peers > 1 &&
         hardware.comm_type == TensorCommType::kScattered &&
         layer.activation_bytes == layer.inputs * hardware.bytes_per_element;
}

void DescribeComm(LayerCosts& costs, const LayerHardware& hardware) {
  const bool is_scattered =
      hardware.comm_type == TensorCommType::kScattered && hardware.peers > 1;
  if (costs.layer->comm.kind == LayerComm::Kind::kSeparate && !is_scattered) {
    // An all-reduce is in place; its counterpart, and either of them without
    // peers, hands its input on.
    costs.made = 0;
    costs.is_in_place = costs.layer->comm.is_conjugate && hardware.peers > 1;
    costs.is_view_like = !costs.is_in_place;
  } else if (costs.layer->comm.is_conjugate && is_scattered) {
    costs.made /= hardware.peers;
  }
}

LayerCosts DescribeLayer(const Layer& layer, const LayerHardware& hardware) {
  LayerCosts costs{.layer = &layer, .made = layer.output_bytes};
  DescribeComm(costs, hardware);
  if (IsFork(layer)) costs.is_view_like = true;
  if (IsDropOut(layer)) {
    costs.is_random = true;
    costs.kept_inside = layer.activation_bytes;
  } else if (KeepsGatheredInput(layer, hardware)) {
    costs.kept_inside = layer.activation_bytes;
  }
  costs.made += costs.kept_inside;
  return costs;
}

// Activations by the layer that made them. A layer keeps the result of the one
// before, but for the products in the core, whose inputs projections made.
void AttributeActivations(std::vector<LayerCosts>& layers,
                          const BlockLayout& layout) {
  std::vector<size_t> projections;
  for (size_t i = 2; i < layout.core.begin; ++i) {
    if (layers[i].layer->weights > 0) projections.push_back(i);
  }
  const auto projection = [&](size_t which) -> double& {
    return layers[projections[std::min(which, projections.size() - 1)]]
        .kept_result;
  };
  for (size_t i = 1; i < layers.size(); ++i) {
    const Layer& layer = *layers[i].layer;
    if (!layer.stores_activation || layers[i].kept_inside > 0) continue;
    if (i == layout.core.begin) {
      projection(0) += layer.activation_bytes / 2;
      projection(1) += layer.activation_bytes / 2;
    } else if (i == layout.core.end - 1) {
      const double scores = layers[i - 1].layer->output_bytes;
      layers[i - 1].kept_result += scores;
      projection(2) += layer.activation_bytes - scores;
    } else {
      layers[i - 1].kept_result += layer.activation_bytes;
    }
  }
}

double Value(const LayerListing& listing, std::string_view name) {
  const auto at = std::ranges::find(kLayerStatisticNames, name);
  return listing.values[at - kLayerStatisticNames.begin()];
}

PlaceMs TimesAt(const LayerListing& listing, std::string_view place,
                double microbatches) {
  const auto exposed = [&](std::string_view pass) {
    return Value(listing,
                 fmt::format("{}block_{}_tp_comm_time_exposed", place, pass));
  };
  const double ms = 1000 * microbatches;
  return {
      .forward = ms * (Value(listing, "fw_processing_time") + exposed("fw")),
      .backward =
          ms * (Value(listing, "agrad_processing_time") + exposed("bw") +
                Value(listing, "wgrad_processing_time"))};
}

enum class Gradients : uint8_t { kNone, kShard, kFull };

// What the first tier of memory holds of a block at the peak.
struct BlockShare {
  bool has_weights = true;
  bool has_optimizer = true;
  Gradients gradients = Gradients::kFull;
  double microbatches = 1;  // activations of as many
  double discardable = 1;   // of those, what units can do without
  bool is_edge = false;
};

// Of what is offloaded the last two blocks are there: one that runs and one on
// its way.
std::vector<BlockShare> SharesOf(const Execution& execution,
                                 const Corrections& corrections, int64_t blocks,
                                 int64_t blocks_per_chunk, double in_flight) {
  std::vector<BlockShare> shares(blocks);
  for (int64_t i = 0; i < blocks; ++i) {
    BlockShare& share = shares[i];
    const bool is_last = i == blocks - 1;
    const bool is_resident = i >= blocks - 2;
    share.is_edge = is_last || (i + 1) % blocks_per_chunk == 0;
    share.has_weights = !execution.weight_offload || is_resident;
    share.has_optimizer = !execution.optimizer_offload || is_resident;
    if (execution.optimizer_offload && !is_resident) {
      share.gradients = Gradients::kNone;
    } else if (!is_last && !corrections.full_precision_gradients) {
      share.gradients = Gradients::kShard;
    }
    share.microbatches =
        !execution.activations_offload ? in_flight : (is_resident ? 1 : 0);
    share.discardable = share.microbatches - (is_last ? 1 : 0);
  }
  return shares;
}

// An operator of the stage, in its block.
struct Operator {
  const LayerCosts* costs = nullptr;
  int64_t made = 0;
  int64_t kept_inside = 0;
  int64_t kept_result = 0;
  double weights = 0;
  double gradients = 0;
  double optimizer = 0;
  PlaceMs ms;
  double microbatches = 0;
};

Operator MakeOperator(const LayerCosts& costs, const BlockShare& share) {
  const Layer& layer = *costs.layer;
  const double discardable = share.discardable;
  Operator made{.costs = &costs,
                .made = Bytes(discardable * costs.made),
                .kept_inside = Bytes(discardable * costs.kept_inside),
                .kept_result = Bytes(discardable * costs.kept_result),
                .weights = share.has_weights ? layer.weight_bytes : 0,
                .optimizer = share.has_optimizer ? layer.optimizer_bytes : 0,
                .ms = share.is_edge ? costs.edge : costs.base,
                .microbatches = share.microbatches};
  switch (share.gradients) {
    case Gradients::kNone:
      break;
    case Gradients::kShard:
      made.gradients = layer.weight_grad_bytes;
      break;
    case Gradients::kFull:
      made.gradients = layer.weight_grad_unsharded_bytes;
      break;
  }
  return made;
}

// All but the memory of the last one, whose result is the module's.
graph::SacStatistics StatisticsOf(std::span<const Operator> operators) {
  graph::SacStatistics sac;
  for (size_t k = 0; k < operators.size(); ++k) {
    const LayerCosts& costs = *operators[k].costs;
    const int index = static_cast<int>(k);
    const bool is_result = k + 1 == operators.size();
    sac.func_names.emplace_back(costs.layer->name);
    sac.runtimes.push_back(operators[k].ms.forward);
    sac.memory.push_back(is_result ? operators[k].kept_inside
                                   : operators[k].made);
    if (costs.is_view_like) sac.view_like_ops.push_back(index);
    if (costs.is_random) sac.rand_ops.push_back(index);
    if (costs.is_in_place) sac.inplace_ops.emplace_back(index, index - 1);
    if (costs.kept_inside + costs.kept_result > 0) {
      sac.saved_autograd_ops.push_back(index);
    }
  }
  return sac;
}

// Bytes in use when backward reaches a module, for a microbatch or for all that
// are in flight.
struct Use {
  double activations = 0;
  double temporaries = 0;  // gradients of activations among them
};

class StageBuilder {
 public:
  StageBuilder(const Model& model, const System& system,
               const Execution& execution, const Corrections& corrections,
               int64_t stage)
      : block_(BuildBlock(model, execution, corrections)),
        costs_(ComputeBlockCosts(model, system, execution, corrections)),
        layout_(LayoutOf(block_.layers())),
        shares_(
            SharesOf(execution, corrections,
                     static_cast<int64_t>(
                         StageBlocks(ScheduleOf(model, execution), stage)),
                     BlocksPerProcessor(model, execution) /
                         execution.pipeline_interleaving,
                     StageMicrobatches(ScheduleOf(model, execution), stage))) {
    DescribeLayers(model, system, execution, corrections);
    AddOperators();
  }

  graph::Profile Build() {
    const size_t root = Begin("Transformer");
    const size_t stage = Begin("Transformer.stage");
    for (size_t i = 0; i < shares_.size(); ++i) AddBlock(i);
    const Use peak{held_, Working()};
    End(stage, {0, operators_.size()}, peak);
    End(root, {0, operators_.size()}, peak);
    graph::ModuleOrders& order = profile_.order;
    order.bw_pre.assign(order.fw_post.rbegin(), order.fw_post.rend());
    order.bw_post.assign(order.fw_pre.rbegin(), order.fw_pre.rend());
    AddMeasured(peak);
    return std::move(profile_);
  }

 private:
  void DescribeLayers(const Model& model, const System& system,
                      const Execution& execution,
                      const Corrections& corrections) {
    const LayerHardware hardware = HardwareOf(system, execution, corrections);
    width_ = hardware.bytes_per_element;
    const auto microbatches = static_cast<double>(execution.NumMicrobatches());
    const std::vector<LayerListing> listings =
        ListLayers(model, system, execution, corrections);
    for (size_t i = 0; i < listings.size(); ++i) {
      LayerCosts costs = DescribeLayer(block_.layers()[i], hardware);
      costs.base = TimesAt(listings[i], "base", microbatches);
      costs.edge = TimesAt(listings[i], "edge", microbatches);
      // Fused with the layer before it: there is no other result.
      if (costs.layer->name == "MlpBlock_GeLU" && execution.fused_activation) {
        costs.made = 0;
        costs.is_in_place = true;
      }
      layers_.push_back(costs);
    }
    AttributeActivations(layers_, layout_);
    input_ = block_.layers().front().activation_bytes;
  }

  // A block's result is the input of the next one, which keeps it.
  void AddOperators() {
    double made = 0;
    for (size_t i = 0; i < shares_.size(); ++i) {
      for (const LayerCosts& costs : layers_) {
        operators_.push_back(MakeOperator(costs, shares_[i]));
        const Operator& added = operators_.back();
        made += static_cast<double>(added.made);
        weights_ += added.weights;
        gradients_ += added.gradients;
        optimizer_ += added.optimizer;
      }
      if (i + 1 < shares_.size()) {
        operators_.back().kept_result = Bytes(shares_[i].discardable * input_);
      }
    }
    Bytes(made);
  }

  double Working() const {
    return costs_.act_working_space - costs_.act_storage_space +
           costs_.act_grad_space;
  }

  // Of a block, with the activations of a microbatch up to layer `end`, and what
  // every plan keeps of the others.
  double ActivationsUpTo(const BlockShare& share, size_t end) const {
    double bytes = held_ + std::max(1.0, share.microbatches) * input_;
    for (size_t k = 0; k < end; ++k) {
      bytes += layers_[k].kept_inside + layers_[k].kept_result;
    }
    return bytes;
  }

  void AddBlock(size_t index) {
    const BlockShare& share = shares_[index];
    const std::string fqn = fmt::format("Transformer.stage.blocks.{}", index);
    const size_t first = index * layers_.size();
    const size_t block = Begin(fqn);
    const auto end = [&](size_t module, Range range, double temporaries) {
      End(module, {first + range.begin, first + range.end},
          {ActivationsUpTo(share, range.end), temporaries});
    };
    const auto add_leaves = [&](const std::string& parent, Range range) {
      for (size_t k = range.begin; k < range.end; ++k) {
        const Layer& layer = *layers_[k].layer;
        const size_t leaf = Begin(fmt::format("{}.{}", parent, layer.name));
        profile_.modules[leaf].is_leaf = true;
        end(leaf, {k, k + 1}, layer.activation_grad_bytes);
      }
    };
    const std::string attention_fqn = fqn + ".attention";
    const size_t attention = Begin(attention_fqn);
    add_leaves(attention_fqn, {layout_.attention.begin, layout_.core.begin});
    const size_t core = Begin(attention_fqn + ".core");
    add_leaves(attention_fqn + ".core", layout_.core);
    end(core, layout_.core, costs_.act_grad_space);
    add_leaves(attention_fqn, {layout_.core.end, layout_.attention.end});
    end(attention, layout_.attention, costs_.act_grad_space);
    const size_t mlp = Begin(fqn + ".mlp");
    add_leaves(fqn + ".mlp", layout_.mlp);
    end(mlp, layout_.mlp, costs_.act_grad_space);
    end(block, {0, layers_.size()}, Working());
    held_ += share.microbatches * costs_.act_storage_space;
  }

  size_t Begin(const std::string& fqn) {
    profile_.modules.emplace_back().fqn = fqn;
    profile_.order.fw_pre.push_back(fqn);
    return profile_.modules.size() - 1;
  }

  void End(size_t index, Range range, const Use& use) {
    graph::Module& module = profile_.modules[index];
    profile_.order.fw_post.push_back(module.fqn);
    const std::span<const Operator> operators =
        std::span(operators_).subspan(range.begin, range.end - range.begin);
    double weights = 0;
    double gradients = 0;
    for (const Operator& one : operators) {
      weights += one.weights;
      gradients += one.gradients;
      module.act_fw_per_module += one.kept_inside + one.kept_result;
      module.fw_runtime_per_module += one.ms.forward;
      module.bw_runtime_per_module += one.ms.backward;
    }
    module.act_fw_per_module -= operators.back().kept_result;
    if (module.fw_runtime_per_module + module.bw_runtime_per_module > kMostMs) {
      throw InputError(fmt::format(
          "a profile holds at most 1e18 ms, the stage has {:.4g}",
          module.fw_runtime_per_module + module.bw_runtime_per_module));
    }
    const Operator& front = operators.front();
    const Operator& back = operators.back();
    module.param_per_module = Bytes(weights);
    module.grad_per_module = Bytes(gradients);
    module.grad_total = Bytes(gradients_);
    module.act_total = module.act_bw_per_module = Bytes(use.activations);
    module.act_grad_per_module = Bytes(use.temporaries);
    module.input_per_module =
        Bytes(front.microbatches * front.costs->layer->inputs * width_);
    module.output_per_module =
        Bytes(back.microbatches * back.costs->layer->output_bytes);
    graph::ModuleSnapshots& snap = module.snap.emplace();
    snap.peak_fw = Snapshot({use.activations, 0});
    snap.peak_bw = Snapshot(use);
    if (!module.is_leaf) module.sac = StatisticsOf(operators);
  }

  graph::MemorySnapshot Snapshot(const Use& use) const {
    graph::MemorySnapshot snapshot = {};
    snapshot[graph::kParam] = Bytes(weights_);
    snapshot[graph::kGrad] = Bytes(gradients_);
    snapshot[graph::kAct] = Bytes(use.activations);
    snapshot[graph::kTemp] = Bytes(use.temporaries);
    snapshot[graph::kOpt] = Bytes(optimizer_);
    snapshot[graph::kTotal] =
        std::accumulate(snapshot.begin(), snapshot.end(), int64_t{0});
    return snapshot;
  }

  void AddMeasured(const Use& peak) {
    const graph::MemorySnapshot step = Snapshot({});
    profile_.measured = {.peak_bytes = Snapshot(peak)[graph::kTotal],
                         .opt_step_peak_bytes = step[graph::kTotal],
                         .opt_step_peak_categories = step,
                         .param_bytes = step[graph::kParam],
                         .grad_bytes = step[graph::kGrad],
                         .optimizer_bytes = step[graph::kOpt],
                         .buffer_bytes = 0,
                         .input_bytes = 0};
  }

  Block block_;
  BlockCosts costs_;
  BlockLayout layout_;
  std::vector<BlockShare> shares_;
  std::vector<LayerCosts> layers_;
  std::vector<Operator> operators_;
  double width_ = 0;
  double input_ = 0;  // bytes of a block's input, which it keeps
  double weights_ = 0;
  double gradients_ = 0;
  double optimizer_ = 0;
  double held_ = 0;  // activations of the blocks so far
  graph::Profile profile_;
};

}  // namespace

graph::Profile StageProfile(const Model& model, const System& system,
                            const Execution& execution,
                            const Corrections& corrections, int64_t stage) {
  const double blocks = StageBlocks(ScheduleOf(model, execution), stage);
  if (blocks > kMostBlocks) {
    throw InputError(
        fmt::format("num_blocks: expected at most {} blocks a stage, found {}",
                    kMostBlocks, blocks));
  }
  Execution without = execution;
  without.activation_recompute = Recompute::kNone;
  without.seq_par_ag_redo = false;
  graph::Profile profile =
      StageBuilder(model, system, without, corrections, stage).Build();
  profile.model.root_class = "Transformer";
  profile.model.batch = execution.batch_size / execution.data_par;
  profile.model.seq = model.seq_size;
  profile.model.dtype = kDatatypeNames[static_cast<size_t>(execution.datatype)];
  profile.model.optimizer = "Adam";
  profile.device.peak_flops = system.matrix.Engine(execution.datatype).peak();
  profile.device.bandwidth = system.mem1.bandwidth.peak();
  return profile;
}

}  // namespace acplan::costmodel
