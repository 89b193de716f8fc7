#pragma once

#include <algorithm>

#include "costmodel/training/layer/layer_operations.h"
#include "costmodel/training/strategy/training_job.h"

namespace acplan::costmodel {

// Seconds of communication that nothing hides, by the group that communicates.
struct ExposedTime {
  double tensor = 0;
  double context = 0;
  double expert = 0;
  double sharded = 0;  // gathered parameters and scattered gradients
  double offload = 0;  // activations copied to the host and back

  double Total() const { return tensor + context + expert + sharded + offload; }
  ExposedTime& operator+=(const ExposedTime& other) {
    tensor += other.tensor;
    context += other.context;
    expert += other.expert;
    sharded += other.sharded;
    offload += other.offload;
    return *this;
  }
  ExposedTime operator*(double count) const {
    return {tensor * count, context * count, expert * count, sharded * count,
            offload * count};
  }
};

// Seconds of a part of a step on one rank.
struct PassTime {
  double compute = 0;  // the GPU's kernels
  double weights = 0;  // the part of compute for gradients of weights
  ExposedTime communication = {};
  double host = 0;  // the host's time to launch it

  // Returns the time of the slower one of GPU and host, since the host runs ahead.
  double Total() const {
    return std::max(compute + communication.Total(), host);
  }
  PassTime& operator+=(const PassTime& other) {
    compute += other.compute;
    weights += other.weights;
    communication += other.communication;
    host += other.host;
    return *this;
  }
  PassTime operator*(double count) const {
    return {compute * count, weights * count, communication * count,
            host * count};
  }
};

// A group of ranks, in which neighbours are `stride` ranks apart.
struct RankGroup {
  int64_t size = 1;
  int64_t stride = 1;
};

// Returns the seconds of a product. Its result is cut into tiles, and each multiprocessor
// computes one at a time: the last wave may leave some idle. `output_width` is the bytes of
// traffic for each element of the result.
double ProductSeconds(const MatrixProduct& product, const TrainingJob& job,
                      double output_width);

// Returns the seconds of a collective by rings inside of nodes and between them: the slower
// one of both, and a latency for each step.
double CollectiveSeconds(CollectiveKind kind, double bytes, RankGroup group,
                         const TrainingJob& job);

// Returns the seconds of one message between neighbouring stages.
double MessageSeconds(double bytes, const TrainingJob& job);

// Returns the seconds of traffic to and from memory.
double TrafficSeconds(double bytes, const TrainingJob& job);

// Returns the ranks that share a layer's tensors, split by tensor parallelism.
RankGroup GroupOf(GroupKind kind, const TrainingStrategy& strategy);

// The ranks that compute the same parameters for different tokens. The ranks of `shards`
// together hold each element of sharded tensors once, and there are as many such groups as
// `replicas` has ranks.
struct DataGroups {
  RankGroup shards = {};
  RankGroup replicas = {};
};
DataGroups DenseDataGroups(const TrainingStrategy& strategy);
DataGroups ExpertDataGroups(const TrainingStrategy& strategy);

PassTime ForwardTime(const LayerOperation& operation, const TrainingJob& job);
PassTime BackwardTime(const LayerOperation& operation, const TrainingJob& job);

}  // namespace acplan::costmodel
