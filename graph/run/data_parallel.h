#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "graph/run/ddp_buckets.h"
#include "graph/run/ddp_options.h"
#include "graph/run/run_events.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// Throws InputError, which begins with `what`, if DistributedDataParallel with these
// options cannot run steps of the trace, or if the trace lacks what its buckets depend on.
void RequireDataParallel(const Trace& trace, const DdpOptions& options,
                         std::string_view what);

// The memory that DistributedDataParallel has on the device, over a run (`reducer.cpp` and
// `distributed.py` of PyTorch 2.13).
//
// - Construction broadcasts parameters and buffers through copies, of which two exist at
//   a time, and makes the buckets.
// - The forward pass after the first backward pass with a reduction (with static_graph:
//   the second) frees the buckets and makes others, in the order in which gradients
//   were ready. The indices that it broadcasts for that come and go.
// - A forward pass broadcasts the buffers, if the one before was of a microbatch whose
//   gradients are reduced.
// - With gradient_as_bucket_view, a gradient's own memory is freed as soon as it is ready.
class DataParallel {
 public:
  // `events` gets the requests and must live as long as this object does. Without
  // options there are none.
  DataParallel(const std::optional<DdpOptions>& options, RunEvents& events)
      : options_(options), events_(events) {}

  // Puts a model on the device.
  void Construct(const Trace& trace);

  // Begins the forward pass of a microbatch, whose gradients are reduced or not. The trace
  // must live as long as this object does.
  void BeginForward(const Trace& trace, bool is_evaluation, bool is_reduced);

  void EndMicrobatch();

  // Returns whether the results of the model are copied at the end of its forward pass,
  // as _DDPSink does.
  bool CopiesResults() const;
  // Adds a copy of a result that is freed before a step, at the latest with the
  // microbatch.
  void AddCopy(int32_t block, StepId end) { copies_.emplace_back(end, block); }
  // Frees the copies whose end this step is.
  void FreeCopies(StepId end);

  // Returns whether buckets hold the gradients of this microbatch, once they are ready.
  bool HoldsGradients() const;
  // Returns whether they count as ready only at the end of the backward pass.
  bool DelaysReduction() const;

  // Returns the blocks that live on, with numbers that tell them apart.
  std::vector<std::pair<int32_t, int32_t>> Blocks() const;

 private:
  // The reductions of gradients so far.
  struct Reductions {
    int64_t count = 0;
    // The model of the last one, with the order in which its gradients were ready.
    const ModelTensors* last = nullptr;
  };

  void Broadcast(const std::vector<BucketTensor>& tensors);
  void MakeBuckets(const std::vector<Bucket>& buckets);
  void Rebuild(const ModelTensors& model);
  void MakeUsedMap(const ModelTensors& model);

  std::optional<DdpOptions> options_;
  RunEvents& events_;
  std::vector<int32_t> buckets_;
  std::optional<int32_t> used_map_;
  std::vector<std::pair<StepId, int32_t>> copies_;
  Reductions reductions_;
  bool has_rebuilt_ = false;
  bool is_reduced_ = true;  // the microbatch, or else the one before
};

}  // namespace acplan::graph
