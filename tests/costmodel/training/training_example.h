#pragma once

#include "costmodel/training/hardware/accelerator.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// Returns Llama 3 8B on 8 H100.
inline TrainingJob Llama8B() {
  static const TrainingSystems kSystems =
      ReadTrainingSystems(ACPLAN_DATA_DIR "/training/systems.json");
  TrainingJob job;
  job.shape = {.layers = 32,
               .hidden = 4096,
               .heads = 32,
               .kv_heads = 8,
               .head_dim = 128,
               .feedforward = 14336,
               .vocabulary = 128256,
               .is_gated = true,
               .has_rope = true};
  job.strategy.gpus = 8;
  job.strategy.sequence = 8192;
  job.strategy.global_batch = 64;
  job.strategy.microbatch = 1;
  job.strategy.zero = 1;
  job.cluster = {.gpu = FindAccelerator(kSystems, "H100-SXM5-80GB"),
                 .stack = FindStack(kSystems, "Megatron-Core"),
                 .domain = 8,
                 .network_rate = 50e9,
                 .kernels = kSystems.kernels};
  return job;
}

}  // namespace acplan::costmodel
