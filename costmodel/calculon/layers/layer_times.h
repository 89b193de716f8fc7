#pragma once

#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/layers/layer.h"

namespace acplan::costmodel {

// The middle blocks of a chunk, and the one at its end, which differ where the
// pipeline's sends are scattered.
enum class BlockPlace : uint8_t { kBase, kEdge };

// The hardware that layers run on.
struct LayerHardware {
  const EfficiencyCurve* matrix = nullptr;
  const EfficiencyCurve* vector = nullptr;
  const EfficiencyCurve* mem1 = nullptr;
  const Network* network = nullptr;  // between tensor-parallel peers
  bool is_roofline = false;
  double bytes_per_element = 2;
  double peers = 1;  // and tiles
  TensorCommType comm_type = TensorCommType::kAllReduce;
  TensorOverlap overlap = TensorOverlap::kNone;
};

// Seconds of a stage of a layer, computing and memory traffic by themselves.
struct WorkTime {
  double flops = 0;
  double mem = 0;
};

// Seconds of a stage as it runs. Of a layer that overlaps communication, `run`
// is what computing takes and `exposed` what communication adds to it.
struct ProcessingTime {
  double run = 0;
  double exposed = 0;
};

double FlopsTime(const Layer& layer, Stage stage,
                 const LayerHardware& hardware);
double MemTime(const Layer& layer, Stage stage, const LayerHardware& hardware);
WorkTime TimeWork(const Layer& layer, Stage stage,
                  const LayerHardware& hardware);

// Bytes that a stage sends. The weight gradients' stage sends what is repeated
// for recomputation.
double CommBytes(const Layer& layer, Stage stage, BlockPlace place,
                 const LayerHardware& hardware);
double CommTileBytes(const Layer& layer, Stage stage, BlockPlace place,
                     const LayerHardware& hardware);

// Seconds on the link, reductions' computing included.
double NetTime(const Layer& layer, Stage stage, BlockPlace place,
               const WorkTime& work, const LayerHardware& hardware);

// `net_time`: NetTime of the block it is for.
ProcessingTime TimeProcessing(const Layer& layer, const WorkTime& work,
                              double net_time, const LayerHardware& hardware);

// Bytes/s that hide a tile's communication behind a tile's computing; 0 for
// layers that overlap nothing.
double RequiredBandwidth(const Layer& layer, Stage stage, BlockPlace place,
                         const WorkTime& work, const LayerHardware& hardware);

}  // namespace acplan::costmodel
