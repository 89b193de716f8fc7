#pragma once

#include <vector>

#include "costmodel/training/strategy/training_job.h"
#include "graph/device/communicator_memory.h"

namespace acplan::costmodel {

// The bytes that a rank may have.
struct MemoryLimit {
  double bytes = 0;
  // The communicators' memory is part of `bytes`: PyTorch has the rest.
  bool has_communicators = false;
};

// Returns what a GPU offers to PyTorch and communicators, the memory of which comes out of
// it; the data sheet's memory for a GPU that was not looked up (WithOffers).
MemoryLimit LimitOfGpu(const Accelerator& gpu);

// Returns the communicators of a strategy that a rank is in: of all ranks, and of tensor,
// context, data, pipeline, expert, expert tensor and expert data parallelism, each if it has
// several ranks. A rank of a middle stage has most. Software may have further ones.
std::vector<graph::Communicator> CommunicatorsOf(const TrainingJob& job);

// Returns their bytes on a GPU. They do not depend on recomputation, offload, schedule or
// the microbatch.
double CommunicatorBytes(const TrainingJob& job);

// Returns the bytes that PyTorch may have on a rank of the job; 0 if there are none.
double PyTorchBytes(const MemoryLimit& limit, const TrainingJob& job);

}  // namespace acplan::costmodel
