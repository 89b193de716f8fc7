#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "graph/run/ddp_options.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// A tensor that shares a bucket with others of its dtype.
struct BucketTensor {
  int64_t bytes = 0;
  std::string_view dtype;
};

// A bucket: tensors of one dtype, which are adjacent in its memory.
struct Bucket {
  int64_t bytes = 0;
  int64_t tensors = 0;

  bool operator==(const Bucket&) const = default;
};

enum class BucketOrder {
  kByFirstTensor,  // as of the parameters that are given
  kWhenFull,       // as of gradients in the order in which they are ready
};

// Assigns tensors to buckets as PyTorch's compute_bucket_assignment_by_size does: a bucket
// ends with the tensor with which it has so many bytes or more. The first bucket of each
// dtype has the first limit, later ones the next, the last one holds for all others.
//
// Requires a limit.
std::vector<Bucket> AssignBuckets(const std::vector<BucketTensor>& tensors,
                                  const std::vector<int64_t>& limits,
                                  BucketOrder order);

// Returns the buckets with which DistributedDataParallel begins, in the order of their
// allocation.
std::vector<Bucket> FirstBuckets(const ModelTensors& model,
                                 const DdpOptions& options);

// Returns the buckets for which it gives those up, after gradients have been ready in
// the order of the trace.
std::vector<Bucket> RebuiltBuckets(const ModelTensors& model,
                                   const DdpOptions& options);

// Returns the copies, one after the other, through which so many tensors are broadcast: a
// bucket of one tensor has none.
std::vector<int64_t> BroadcastCopies(const std::vector<BucketTensor>& tensors);

}  // namespace acplan::graph
