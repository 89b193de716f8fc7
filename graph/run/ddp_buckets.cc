#include "graph/run/ddp_buckets.h"

#include <algorithm>
#include <cstddef>
#include <limits>

#include "graph/base/flag.h"

namespace acplan::graph {
namespace {

constexpr int64_t kBroadcastBytes = int64_t{250} << 20;

// The open bucket of a dtype.
struct OpenBucket {
  std::string_view dtype;
  Bucket bucket = {};
  size_t first = 0;  // of its tensors
  size_t limit = 0;  // of the limits
};

struct ClosedBucket {
  Bucket bucket;
  size_t first = 0;
};

OpenBucket& OpenBucketOf(std::vector<OpenBucket>& open,
                         std::string_view dtype) {
  const auto match = std::ranges::find(open, dtype, &OpenBucket::dtype);
  if (match != open.end()) return *match;
  // An unordered_map of C++'s library yields the newest of a few keys first.
  return *open.insert(open.begin(), {.dtype = dtype});
}

BucketTensor BucketTensorOf(const ModelTensor& tensor) {
  return {.bytes = tensor.bytes, .dtype = tensor.dtype};
}

std::vector<BucketTensor> TrainedTensors(const ModelTensors& model) {
  std::vector<BucketTensor> tensors;
  for (const ModelTensor& tensor : model.parameters) {
    if (tensor.trained) tensors.push_back(BucketTensorOf(tensor));
  }
  return tensors;
}

}  // namespace

std::vector<Bucket> AssignBuckets(const std::vector<BucketTensor>& tensors,
                                  const std::vector<int64_t>& limits,
                                  BucketOrder order) {
  std::vector<OpenBucket> open;
  std::vector<ClosedBucket> closed;
  const auto close = [&](OpenBucket& full) {
    closed.push_back({.bucket = full.bucket, .first = full.first});
    full.bucket = {};
    full.limit = std::min(full.limit + 1, limits.size() - 1);
  };
  for (size_t k = 0; k < tensors.size(); ++k) {
    OpenBucket& mine = OpenBucketOf(open, tensors[k].dtype);
    if (mine.bucket.tensors++ == 0) mine.first = k;
    mine.bucket.bytes += tensors[k].bytes;
    if (mine.bucket.bytes >= limits[mine.limit]) close(mine);
  }
  for (OpenBucket& rest : open) {
    if (rest.bucket.tensors > 0) close(rest);
  }
  if (order == BucketOrder::kByFirstTensor) {
    std::ranges::sort(closed, {}, &ClosedBucket::first);
  }
  std::vector<Bucket> buckets;
  for (const ClosedBucket& bucket : closed) buckets.push_back(bucket.bucket);
  return buckets;
}

std::vector<Bucket> FirstBuckets(const ModelTensors& model,
                                 const DdpOptions& options) {
  // Buckets that are rebuilt begin as one.
  const bool is_rebuilt =
      options.static_graph || !options.find_unused_parameters;
  std::vector<int64_t> limits{options.first_bucket_bytes, options.bucket_bytes};
  if (is_rebuilt) limits = {std::numeric_limits<int64_t>::max()};
  std::vector<Bucket> buckets =
      AssignBuckets(TrainedTensors(model), limits, BucketOrder::kByFirstTensor);
  std::ranges::reverse(buckets);
  return buckets;
}

std::vector<Bucket> RebuiltBuckets(const ModelTensors& model,
                                   const DdpOptions& options) {
  // Parameters without a gradient come last, as with static_graph.
  std::vector<BucketTensor> tensors;
  std::vector<Flag> is_ready(model.parameters.size(), false);
  for (const ReadyGradient& gradient : model.gradients) {
    const auto place = static_cast<size_t>(gradient.parameter);
    is_ready[place] = true;
    tensors.push_back(BucketTensorOf(model.parameters[place]));
  }
  for (size_t k = 0; k < model.parameters.size(); ++k) {
    const ModelTensor& tensor = model.parameters[k];
    if (tensor.trained && !is_ready[k]) {
      tensors.push_back(BucketTensorOf(tensor));
    }
  }
  return AssignBuckets(tensors,
                       {options.first_bucket_bytes, options.bucket_bytes},
                       BucketOrder::kWhenFull);
}

std::vector<int64_t> BroadcastCopies(const std::vector<BucketTensor>& tensors) {
  std::vector<int64_t> copies;
  for (const Bucket& bucket :
       AssignBuckets(tensors, {kBroadcastBytes}, BucketOrder::kByFirstTensor)) {
    copies.push_back(bucket.tensors == 1 ? 0 : bucket.bytes);
  }
  return copies;
}

}  // namespace acplan::graph
