#include "graph/run/data_parallel.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

// The size of an index, and of a flag, on the device.
constexpr int64_t kIndexBytes = 4;

constexpr size_t kMostBroadcasts = 2;

int64_t TrainedCount(const ModelTensors& model) {
  return std::ranges::count_if(model.parameters, &ModelTensor::trained);
}

void AddTensors(const std::vector<ModelTensor>& from,
                std::vector<BucketTensor>& tensors) {
  for (const ModelTensor& tensor : from) {
    tensors.push_back({.bytes = tensor.bytes, .dtype = tensor.dtype});
  }
}

}  // namespace

void RequireDataParallel(const Trace& trace, const DdpOptions& options,
                         std::string_view what) {
  if (!trace.model_tensors) {
    throw InputError(fmt::format(
        "{}: the trace does not say when gradients are ready (model_tensors): "
        "trace the model again",
        what));
  }
  const int64_t trained = TrainedCount(*trace.model_tensors);
  if (trained == 0) {
    throw InputError(fmt::format("{}: no parameter is trained", what));
  }
  const int64_t missing_count =
      trained - std::ssize(trace.model_tensors->gradients);
  if (missing_count > 0 && !options.find_unused_parameters &&
      !options.static_graph) {
    throw InputError(fmt::format(
        "{}: DistributedDataParallel needs find_unused_parameters:True or "
        "static_graph:True, as {} parameter{} no gradient",
        what, missing_count, missing_count == 1 ? " gets" : "s get"));
  }
  if (options.static_graph && trace.microbatches > 1) {
    throw InputError(fmt::format(
        "{}: static_graph: expected one microbatch, found {}: the first "
        "backward pass must reduce the gradients",
        what, trace.microbatches));
  }
}

void DataParallel::Construct(const Trace& trace) {
  if (!options_) return;
  const ModelTensors& model = *trace.model_tensors;
  if (options_->init_sync) {
    std::vector<BucketTensor> tensors;
    AddTensors(model.parameters, tensors);
    if (options_->broadcast_buffers) AddTensors(model.buffers, tensors);
    Broadcast(tensors);
  }
  MakeBuckets(FirstBuckets(model, *options_));
  if (options_->find_unused_parameters) MakeUsedMap(model);
  if (options_->static_graph) MakeUsedMap(model);
}

void DataParallel::BeginForward(const Trace& trace, bool is_evaluation,
                                bool is_reduced) {
  if (!options_) return;
  const bool syncs_buffers = std::exchange(is_reduced_, is_reduced);
  const ModelTensors& model = *trace.model_tensors;
  const int64_t reductions_before = options_->static_graph ? 2 : 1;
  const bool may_rebuild =
      options_->static_graph || !options_->find_unused_parameters;
  if (!is_evaluation && may_rebuild && !has_rebuilt_ &&
      reductions_.count >= reductions_before) {
    Rebuild(*reductions_.last);
  }
  if (is_reduced) reductions_.last = &model;
  if (!options_->broadcast_buffers || !syncs_buffers) return;
  std::vector<BucketTensor> tensors;
  AddTensors(model.buffers, tensors);
  Broadcast(tensors);
}

void DataParallel::EndMicrobatch() {
  for (const auto& [end, block] : std::exchange(copies_, {})) {
    events_.Free(block);
  }
  if (is_reduced_) ++reductions_.count;
}

bool DataParallel::CopiesResults() const {
  if (!options_) return false;
  return options_->static_graph ? reductions_.count == 0
                                : options_->find_unused_parameters;
}

void DataParallel::FreeCopies(StepId end) {
  const auto is_over = [&](const auto& copy) { return copy.first <= end; };
  for (const auto& copy : copies_) {
    if (is_over(copy)) events_.Free(copy.second);
  }
  std::erase_if(copies_, is_over);
}

bool DataParallel::HoldsGradients() const {
  return options_ && options_->gradient_as_bucket_view && is_reduced_;
}

bool DataParallel::DelaysReduction() const {
  return options_ && options_->static_graph && reductions_.count == 0;
}

std::vector<std::pair<int32_t, int32_t>> DataParallel::Blocks() const {
  std::vector<std::pair<int32_t, int32_t>> blocks;
  if (used_map_) blocks.emplace_back(0, *used_map_);
  for (const int32_t block : buckets_) {
    blocks.emplace_back(static_cast<int32_t>(blocks.size()) + 1, block);
  }
  return blocks;
}

void DataParallel::Broadcast(const std::vector<BucketTensor>& tensors) {
  std::deque<std::optional<int32_t>> in_flight;
  const auto end_first = [&] {
    if (in_flight.front()) events_.Free(*in_flight.front());
    in_flight.pop_front();
  };
  for (const int64_t bytes : BroadcastCopies(tensors)) {
    if (in_flight.size() >= kMostBroadcasts) end_first();
    in_flight.emplace_back();
    if (bytes > 0) in_flight.back() = events_.AllocateForDdp(bytes);
  }
  while (!in_flight.empty()) end_first();
}

void DataParallel::MakeBuckets(const std::vector<Bucket>& buckets) {
  for (const int32_t block : std::exchange(buckets_, {})) events_.Free(block);
  for (const Bucket& bucket : buckets) {
    buckets_.push_back(events_.AllocateForDdp(bucket.bytes));
  }
}

void DataParallel::Rebuild(const ModelTensors& model) {
  has_rebuilt_ = true;
  const std::vector<Bucket> buckets = RebuiltBuckets(model, *options_);
  const int32_t indices =
      events_.AllocateForDdp(kIndexBytes * (TrainedCount(model) + 1));
  const int32_t sizes =
      events_.AllocateForDdp(kIndexBytes * std::ssize(buckets));
  events_.Free(sizes);
  events_.Free(indices);
  MakeBuckets(buckets);
}

void DataParallel::MakeUsedMap(const ModelTensors& model) {
  const std::optional<int32_t> old = used_map_;
  used_map_ = events_.AllocateForDdp(kIndexBytes * TrainedCount(model));
  if (old) events_.Free(*old);
}

}  // namespace acplan::graph
