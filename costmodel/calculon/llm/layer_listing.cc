#include "costmodel/calculon/llm/layer_listing.h"

#include <cstddef>
#include <limits>

namespace acplan::costmodel {

const std::array<std::string_view, kLayerStatistics> kLayerStatisticNames = {
    "inputs_size",
    "outputs_size",
    "fw_flops",
    "fw_mem_accessed",
    "fw_arithmetic_intensity",
    "fw_processing_time",
    "baseblock_fw_tp_comm_tile",
    "edgeblock_fw_tp_comm_tile",
    "baseblock_fw_tp_comm_size",
    "edgeblock_fw_tp_comm_size",
    "baseblock_fw_tp_comm_time",
    "edgeblock_fw_tp_comm_time",
    "baseblock_fw_tp_comm_time_exposed",
    "edgeblock_fw_tp_comm_time_exposed",
    "agrad_flops",
    "agrad_mem_accessed",
    "agrad_arithmetic_intensity",
    "agrad_processing_time",
    "baseblock_bw_tp_comm_tile",
    "edgeblock_bw_tp_comm_tile",
    "baseblock_bw_tp_comm_size",
    "edgeblock_bw_tp_comm_size",
    "baseblock_bw_tp_comm_time",
    "edgeblock_bw_tp_comm_time",
    "baseblock_bw_tp_comm_time_exposed",
    "edgeblock_bw_tp_comm_time_exposed",
    "wgrad_flops",
    "wgrad_mem_accessed",
    "wgrad_arithmetic_intensity",
    "wgrad_processing_time",
    "baseblock_recomm_tile",
    "edgeblock_recomm_tile",
    "baseblock_recomm_size",
    "edgeblock_recomm_size",
    "baseblock_recomm_time",
    "edgeblock_recomm_time",
    "baseblock_recomm_time_exposed",
    "edgeblock_recomm_time_exposed",
    "optim_flops",
    "optim_mem_accessed",
    "optim_arithmetic_intensity",
    "optim_processing_time",
    "weight",
    "activation",
    "weight_grad",
    "activation_grad",
    "optimizer"};

namespace {

class ValueWriter {
 public:
  ValueWriter(const Layer& layer, const LayerHardware& hardware,
              LayerListing& listing)
      : layer_(layer), hardware_(hardware), listing_(listing) {}

  void Append(double value) { listing_.values[next_++] = value; }

  void PutWork(Stage stage) {
    const Work& work = layer_.At(stage);
    Append(work.flops);
    Append(work.mem_accessed);
    Append(work.flops == 0          ? 0
           : work.mem_accessed == 0 ? std::numeric_limits<double>::infinity()
                                    : work.flops / work.mem_accessed);
    const WorkTime time = TimeWork(layer_, stage, hardware_);
    Append(TimeProcessing(
               layer_, time,
               NetTime(layer_, stage, BlockPlace::kBase, time, hardware_),
               hardware_)
               .run);
  }

  void PutComm(Stage stage) {
    using enum BlockPlace;
    const WorkTime time = TimeWork(layer_, stage, hardware_);
    for (const BlockPlace place : {kBase, kEdge}) {
      Append(CommTileBytes(layer_, stage, place, hardware_));
    }
    for (const BlockPlace place : {kBase, kEdge}) {
      Append(CommBytes(layer_, stage, place, hardware_));
    }
    for (const BlockPlace place : {kBase, kEdge}) {
      Append(NetTime(layer_, stage, place, time, hardware_));
    }
    for (const BlockPlace place : {kBase, kEdge}) {
      // Overlapped layers report the exposed time of a middle block for both places.
      const bool by_place = layer_.comm.kind == LayerComm::Kind::kSeparate;
      const double net_time =
          NetTime(layer_, stage, by_place ? place : kBase, time, hardware_);
      Append(TimeProcessing(layer_, time, net_time, hardware_).exposed);
    }
  }

 private:
  const Layer& layer_;
  const LayerHardware& hardware_;
  LayerListing& listing_;
  size_t next_ = 0;
};

}  // namespace

std::vector<LayerListing> ListLayers(const Model& model, const System& system,
                                     const Execution& execution) {
  const Block block = BuildBlock(model, execution);
  const LayerHardware hardware = HardwareOf(system, execution);
  std::vector<LayerListing> listings;
  for (const Layer& layer : block.layers()) {
    LayerListing& listing = listings.emplace_back();
    listing.name = layer.name;
    ValueWriter writer(layer, hardware, listing);
    writer.Append(layer.inputs);
    writer.Append(layer.outputs);
    writer.PutWork(Stage::kForward);
    writer.PutComm(Stage::kForward);
    writer.PutWork(Stage::kActivationGradient);
    writer.PutComm(Stage::kActivationGradient);
    writer.PutWork(Stage::kWeightGradient);
    writer.PutComm(Stage::kWeightGradient);
    writer.PutWork(Stage::kOptimizerStep);
    writer.Append(layer.weight_bytes);
    writer.Append(layer.activation_bytes);
    writer.Append(layer.weight_grad_bytes);
    writer.Append(layer.activation_grad_bytes);
    writer.Append(layer.optimizer_bytes);
  }
  return listings;
}

}  // namespace acplan::costmodel
