#pragma once

#include <cstdint>

#include "costmodel/training/hardware/accelerator.h"
#include "costmodel/training/hardware/model_constants.h"
#include "costmodel/training/model/model_shape.h"
#include "costmodel/training/strategy/training_strategy.h"

namespace acplan::costmodel {

// The GPUs that a job runs on and the links between them.
struct Cluster {
  Accelerator gpu = {};
  SoftwareStack stack = {};
  int64_t domain = 8;       // the GPUs that NVLink joins
  double network_rate = 0;  // nominal, bytes per second and GPU, one direction
  KernelConstants kernels = {};
  ModelConstants constants = {};
};

// All that a prediction depends on.
struct TrainingJob {
  ModelShape shape = {};
  TrainingStrategy strategy = {};
  Cluster cluster = {};
};

}  // namespace acplan::costmodel
