#pragma once

#include "costmodel/calculon/execution/execution.h"
#include "costmodel/calculon/hardware/system.h"
#include "costmodel/calculon/layers/layer.h"

namespace acplan::costmodel {

// The place of a block in a chunk: a middle one, or the one at the end. They differ if the
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
  double peers = 1;  // also the number of tiles
  TensorCommType comm_type = TensorCommType::kAllReduce;
  TensorOverlap overlap = TensorOverlap::kNone;
};

// The seconds of a stage of a layer, of computing and of memory traffic alone.
struct WorkTime {
  double flops = 0;
  double mem = 0;
};

// The seconds of a stage as it runs. For a layer that overlaps communication, `run` is the
// time of computing and `exposed` the time that communication adds to it.
struct ProcessingTime {
  double run = 0;
  double exposed = 0;
};

double FlopsTime(const Layer& layer, Stage stage,
                 const LayerHardware& hardware);
double MemTime(const Layer& layer, Stage stage, const LayerHardware& hardware);
WorkTime TimeWork(const Layer& layer, Stage stage,
                  const LayerHardware& hardware);

// Returns the bytes that a stage sends. The weight gradients' stage sends the communication
// that is repeated for recomputation.
double CommBytes(const Layer& layer, Stage stage, BlockPlace place,
                 const LayerHardware& hardware);
double CommTileBytes(const Layer& layer, Stage stage, BlockPlace place,
                     const LayerHardware& hardware);

// Returns the seconds on the link, including the computing of reductions.
double NetTime(const Layer& layer, Stage stage, BlockPlace place,
               const WorkTime& work, const LayerHardware& hardware);

// Returns the times of a stage. `net_time` is NetTime at the block's place.
ProcessingTime TimeProcessing(const Layer& layer, const WorkTime& work,
                              double net_time, const LayerHardware& hardware);

// Returns the bytes/s that hide a tile's communication behind a tile's computing; 0 for
// layers that overlap nothing.
double RequiredBandwidth(const Layer& layer, Stage stage, BlockPlace place,
                         const WorkTime& work, const LayerHardware& hardware);

}  // namespace acplan::costmodel
