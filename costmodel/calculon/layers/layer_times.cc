#include "costmodel/calculon/layers/layer_times.h"

#include <algorithm>
#include <optional>

namespace acplan::costmodel {
namespace {

using CommKind = LayerComm::Kind;

double NetworkTime(NetworkOperation operation, double bytes,
                   const LayerHardware& hardware) {
  return hardware.network->Time(operation, bytes, hardware.peers);
}

bool IsSplit(BlockPlace place, const LayerHardware& hardware) {
  return hardware.comm_type == TensorCommType::kScattered ||
         (hardware.comm_type == TensorCommType::kScatteredSend &&
          place == BlockPlace::kEdge);
}

// Returns whether a pass reduces; otherwise it gathers. A conjugate layer reduces in the
// forward pass.
bool IsReduction(const LayerComm& comm, bool is_forward) {
  return comm.is_conjugate == is_forward;
}

// Returns the operation of a pass on the network. If reductions are not split, their
// counterpart sends nothing.
std::optional<NetworkOperation> Operation(const LayerComm& comm,
                                          bool is_forward, bool is_split) {
  if (IsReduction(comm, is_forward)) {
    return is_split ? NetworkOperation::kReduceScatter
                    : NetworkOperation::kAllReduce;
  }
  if (is_split) return NetworkOperation::kAllGather;
  return std::nullopt;
}

double PassBytes(const Layer& layer, bool is_forward, bool is_split,
                 const LayerHardware& hardware) {
  if (!is_split && !IsReduction(layer.comm, is_forward)) return 0;
  const double elements = layer.comm.is_conjugate ? layer.comm.output_elements
                                                  : layer.comm.input_elements;
  return elements * hardware.bytes_per_element;
}

double OverlappedNetTime(const Layer& layer, Stage stage, BlockPlace place,
                         const LayerHardware& hardware) {
  const bool is_forward = stage != Stage::kActivationGradient;
  const auto operation =
      Operation(layer.comm, is_forward, IsSplit(place, hardware));
  if (!operation) return 0;
  const double bytes = CommBytes(layer, stage, place, hardware);
  const double time = NetworkTime(*operation, bytes, hardware);
  if (stage == Stage::kWeightGradient || !IsReduction(layer.comm, is_forward)) {
    return time;
  }
  const double flops = bytes / hardware.bytes_per_element *
                       (hardware.peers - 1) / hardware.peers;
  return time + flops / hardware.vector->Throughput(flops);
}

double SeparateNetTime(const Layer& layer, Stage stage, BlockPlace place,
                       const WorkTime& work, const LayerHardware& hardware) {
  const bool is_forward = stage != Stage::kActivationGradient;
  const double computing = hardware.is_roofline ? std::max(work.flops, work.mem)
                                                : work.flops + work.mem;
  const auto operation =
      Operation(layer.comm, is_forward, IsSplit(place, hardware));
  if (!operation) return computing;
  return NetworkTime(*operation, CommBytes(layer, stage, place, hardware),
                     hardware) +
         computing;
}

}  // namespace

double FlopsTime(const Layer& layer, Stage stage,
                 const LayerHardware& hardware) {
  const double flops = layer.At(stage).flops;
  if (flops == 0) return 0;
  const bool on_matrix =
      layer.uses_matrix_engine && stage != Stage::kOptimizerStep;
  const EfficiencyCurve& engine =
      on_matrix ? *hardware.matrix : *hardware.vector;
  return flops / engine.Throughput(flops);
}

double MemTime(const Layer& layer, Stage stage, const LayerHardware& hardware) {
  const double bytes = layer.At(stage).mem_accessed;
  if (bytes == 0) return 0;
  return bytes / hardware.mem1->Throughput(bytes);
}

WorkTime TimeWork(const Layer& layer, Stage stage,
                  const LayerHardware& hardware) {
  return {FlopsTime(layer, stage, hardware), MemTime(layer, stage, hardware)};
}

double CommBytes(const Layer& layer, Stage stage, BlockPlace place,
                 const LayerHardware& hardware) {
  if (layer.comm.kind == CommKind::kNone || hardware.peers == 1) return 0;
  const bool is_split = IsSplit(place, hardware);
  switch (stage) {
    case Stage::kForward:
      return PassBytes(layer, true, is_split, hardware);
    case Stage::kActivationGradient:
      return PassBytes(layer, false, is_split, hardware);
    case Stage::kWeightGradient:
      return layer.comm.is_repeated ? PassBytes(layer, true, is_split, hardware)
                                    : 0;
    case Stage::kOptimizerStep:
      return 0;
  }
  return 0;
}

double CommTileBytes(const Layer& layer, Stage stage, BlockPlace place,
                     const LayerHardware& hardware) {
  const double bytes = CommBytes(layer, stage, place, hardware);
  return layer.comm.kind == CommKind::kOverlapped ? bytes / hardware.peers
                                                  : bytes;
}

double NetTime(const Layer& layer, Stage stage, BlockPlace place,
               const WorkTime& work, const LayerHardware& hardware) {
  if (layer.comm.kind == CommKind::kNone || hardware.peers == 1 ||
      stage == Stage::kOptimizerStep ||
      (stage == Stage::kWeightGradient && !layer.comm.is_repeated)) {
    return 0;
  }
  return layer.comm.kind == CommKind::kOverlapped
             ? OverlappedNetTime(layer, stage, place, hardware)
             : SeparateNetTime(layer, stage, place, work, hardware);
}

ProcessingTime TimeProcessing(const Layer& layer, const WorkTime& work,
                              double net_time, const LayerHardware& hardware) {
  if (layer.comm.kind == CommKind::kSeparate) return {0, net_time};
  const auto together = [&](double flops_time) {
    return hardware.is_roofline ? std::max(flops_time, work.mem)
                                : flops_time + work.mem;
  };
  const double computing = together(work.flops);
  if (layer.comm.kind == CommKind::kNone || net_time == 0)
    return {computing, 0};

  // Sending takes a part of the processor during all tiles but one.
  const double usage = hardware.network->processor_usage;
  const double tiles = hardware.peers;
  const double slowed_flops = work.flops / (1 - usage);
  const double slowed = together(slowed_flops);
  const double net_tile = net_time / tiles;
  const double tile = computing / tiles;
  const double excess = net_tile - slowed_flops / tiles;
  ProcessingTime time;
  if (excess > 0) {
    time.run = tile + (tiles - 1) * (slowed / tiles);
    time.exposed = (tiles - 1) * excess;
  } else {
    time.run = tile + (tiles - 1) * tile + (tiles - 1) * net_tile * usage;
  }
  if (hardware.overlap == TensorOverlap::kPipe) {
    time.exposed += net_tile;
    time.run += net_tile;
  }
  return time;
}

double RequiredBandwidth(const Layer& layer, Stage stage, BlockPlace place,
                         const WorkTime& work, const LayerHardware& hardware) {
  if (layer.comm.kind != CommKind::kOverlapped) return 0;
  const double slowed = work.flops / (1 - hardware.network->processor_usage);
  return CommTileBytes(layer, stage, place, hardware) /
         (slowed / hardware.peers);
}

}  // namespace acplan::costmodel
