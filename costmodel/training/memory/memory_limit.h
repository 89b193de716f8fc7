#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "costmodel/training/strategy/training_job.h"
#include "graph/device/communicator_memory.h"

namespace acplan::costmodel {

// The share of what PyTorch's allocator reserves that no tensor can use at the peak: the most
// of eight public training runs that print both (SimuMax's on B200: 2.8 to 6.5%).
constexpr double kAllocatorLoss = .065;

// The bytes that a rank may have.
struct MemoryLimit {
  double bytes = 0;
  // The communicators' memory is part of `bytes`: PyTorch has the rest.
  bool has_communicators = false;
  // The allocator's loss, a share of what remains for PyTorch.
  double allocator_loss = 0;
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

// Returns the bytes that PyTorch may reserve on a rank of the job, and those of them that its
// tensors may have; 0 if there are none.
double ReservedBytes(const MemoryLimit& limit, const TrainingJob& job);
double PyTorchBytes(const MemoryLimit& limit, const TrainingJob& job);

// The results of PyTorchBytes that a search has computed, for one limit and strategies that
// differ only in the pipeline, the sharding, and in layers that are recomputed or offloaded.
class KnownBudgets {
 public:
  double Find(const MemoryLimit& limit, const TrainingJob& job);

 private:
  // The keys are the pipeline's stages and the groups that share optimizer states.
  std::map<std::pair<int64_t, int64_t>, double> budgets_ = {};
};

}  // namespace acplan::costmodel
