#include "costmodel/profile/stage_operators.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string_view>

#include "costmodel/llm/layer_listing.h"
#include "costmodel/llm/schedule.h"
#include "graph/base/input_error.h"
#include "graph/base/number_limits.h"

namespace acplan::costmodel {
namespace {

constexpr auto kMostBytes = static_cast<double>(graph::kMostExactInteger);

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
  if (costs.layer.comm.kind == LayerComm::Kind::kSeparate && !is_scattered) {
    // An all-reduce is in place; its counterpart, and either of them without
    // peers, hands its input on.
    costs.made = 0;
    costs.is_in_place = costs.layer.comm.is_conjugate && hardware.peers > 1;
    costs.is_view_like = !costs.is_in_place;
  } else if (costs.layer.comm.is_conjugate && is_scattered) {
    costs.made /= hardware.peers;
  }
}

LayerCosts DescribeLayer(const Layer& layer, const LayerHardware& hardware) {
  LayerCosts costs{.layer = layer, .made = layer.output_bytes};
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
    if (layers[i].layer.weights > 0) projections.push_back(i);
  }
  const auto projection = [&](size_t which) -> double& {
    return layers[projections[std::min(which, projections.size() - 1)]]
        .kept_result;
  };
  for (size_t i = 1; i < layers.size(); ++i) {
    const Layer& layer = layers[i].layer;
    if (!layer.stores_activation || layers[i].kept_inside > 0) continue;
    if (i == layout.core.begin) {
      projection(0) += layer.activation_bytes / 2;
      projection(1) += layer.activation_bytes / 2;
    } else if (i == layout.core.end - 1) {
      const double scores = layers[i - 1].layer.output_bytes;
      layers[i - 1].kept_result += scores;
      projection(2) += layer.activation_bytes - scores;
    } else {
      layers[i - 1].kept_result += layer.activation_bytes;
    }
  }
}

double Value(const LayerListing& listing, std::string_view name) {
  const auto found = std::ranges::find(kLayerStatisticNames, name);
  return listing.values[found - kLayerStatisticNames.begin()];
}

PassMs TimesAt(const LayerListing& listing, std::string_view place,
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

// Where states are offloaded, the first tier has those of the last two blocks:
// one that runs and one on its way.
std::vector<StageBlock> SharesOf(const Execution& execution,
                                 const Corrections& corrections, int64_t blocks,
                                 int64_t blocks_per_chunk, double in_flight) {
  std::vector<StageBlock> shares(blocks);
  for (int64_t i = 0; i < blocks; ++i) {
    StageBlock& share = shares[i];
    const bool is_last = i == blocks - 1;
    const bool is_resident = i >= blocks - 2;
    share.is_edge = is_last || (i + 1) % blocks_per_chunk == 0;
    share.has_weights = !execution.weight_offload || is_resident;
    share.has_optimizer = !execution.optimizer_offload || is_resident;
    if (execution.optimizer_offload && !is_resident) {
      share.gradients = HeldGradients::kNone;
    } else if (!is_last && !corrections.full_precision_gradients) {
      share.gradients = HeldGradients::kShard;
    }
    share.microbatches =
        !execution.activations_offload ? in_flight : (is_resident ? 1 : 0);
    share.discardable = share.microbatches - (is_last ? 1 : 0);
  }
  return shares;
}

StageOperator MakeOperator(size_t index, const LayerCosts& costs,
                           const StageBlock& share) {
  const Layer& layer = costs.layer;
  const double discardable = share.discardable;
  StageOperator made{
      .layer = index,
      .made = ProfileBytes(discardable * costs.made),
      .kept_inside = ProfileBytes(discardable * costs.kept_inside),
      .kept_result = ProfileBytes(discardable * costs.kept_result),
      .weights = share.has_weights ? layer.weight_bytes : 0,
      .optimizer = share.has_optimizer ? layer.optimizer_bytes : 0,
      .ms = share.is_edge ? costs.edge : costs.base,
      .microbatches = share.microbatches};
  switch (share.gradients) {
    case HeldGradients::kNone:
      break;
    case HeldGradients::kShard:
      made.gradients = layer.weight_grad_bytes;
      break;
    case HeldGradients::kFull:
      made.gradients = layer.weight_grad_unsharded_bytes;
      break;
  }
  return made;
}

std::vector<LayerCosts> DescribeLayers(const Model& model, const System& system,
                                       const Execution& execution,
                                       const Corrections& corrections) {
  const LayerHardware hardware = HardwareOf(system, execution, corrections);
  const auto microbatches = static_cast<double>(execution.NumMicrobatches());
  const Block block = BuildBlock(model, execution, corrections);
  const std::vector<LayerListing> listings =
      ListLayers(model, system, execution, corrections);
  std::vector<LayerCosts> layers;
  for (size_t i = 0; i < listings.size(); ++i) {
    LayerCosts costs = DescribeLayer(block.layers()[i], hardware);
    costs.base = TimesAt(listings[i], "base", microbatches);
    costs.edge = TimesAt(listings[i], "edge", microbatches);
    // Fused with the layer before it: there is no other result.
    if (costs.layer.name == "MlpBlock_GeLU" && execution.fused_activation) {
      costs.made = 0;
      costs.is_in_place = true;
    }
    layers.push_back(costs);
  }
  AttributeActivations(layers, LayoutOf(block.layers()));
  return layers;
}

// A block's result is the input of the next one, which keeps it.
void AddOperators(StageOperators& stage) {
  double made = 0;
  for (size_t i = 0; i < stage.blocks.size(); ++i) {
    for (size_t k = 0; k < stage.layers.size(); ++k) {
      stage.operators.push_back(
          MakeOperator(k, stage.layers[k], stage.blocks[i]));
      const StageOperator& added = stage.operators.back();
      made += static_cast<double>(added.made);
      stage.weights += added.weights;
      stage.gradients += added.gradients;
      stage.optimizer += added.optimizer;
    }
    if (i + 1 < stage.blocks.size()) {
      stage.operators.back().kept_result =
          ProfileBytes(stage.blocks[i].discardable * stage.input_bytes);
    }
  }
  ProfileBytes(made);
}

}  // namespace

int64_t ProfileBytes(double bytes) {
  if (!(bytes <= kMostBytes)) {
    throw InputError(fmt::format(
        "a profile holds at most 2^53 bytes, the stage has {:.4g}", bytes));
  }
  return std::llround(bytes);
}

StageOperators ListStageOperators(const Model& model, const System& system,
                                  const Execution& execution,
                                  const Corrections& corrections,
                                  int64_t stage) {
  const Schedule schedule = ScheduleOf(model, execution);
  StageOperators listed;
  listed.costs = ComputeBlockCosts(model, system, execution, corrections);
  listed.blocks = SharesOf(
      execution, corrections,
      static_cast<int64_t>(StageBlocks(schedule, stage)),
      BlocksPerProcessor(model, execution) / execution.pipeline_interleaving,
      StageMicrobatches(schedule, stage));
  listed.layers = DescribeLayers(model, system, execution, corrections);
  const Block block = BuildBlock(model, execution, corrections);
  listed.layout = LayoutOf(block.layers());
  listed.input_bytes = block.layers().front().activation_bytes;
  listed.bytes_per_element =
      HardwareOf(system, execution, corrections).bytes_per_element;
  AddOperators(listed);
  return listed;
}

}  // namespace acplan::costmodel
