// Times of single operations, from the vendor's peaks and a few shares of them.
//
// Products. A kernel cuts the result into tiles, and a multiprocessor computes one at a
// time. Small tiles reuse less of the data that they read, so they reach a smaller share of
// the peak. The library takes the fastest tile; so does this model. The last wave is often
// not full: half of its idle time counts, since the other multiprocessors then run at
// higher clocks and split products are used. A product is never faster than its operands
// arrive from memory.
//
// Collectives. A ring over n ranks moves (n - 1) / n of the tensor through each rank, and
// the whole tensor through each node. NVLink carries the former, and the network the
// latter, over as many rails as the group has ranks in a node.
#include "costmodel/training/layer/operation_times.h"

#include <algorithm>
#include <cmath>

namespace acplan::costmodel {
namespace {

// The products of FlashAttention's backward pass relative to those of the forward pass.
constexpr double kBackwardAttention = 2.5;
double GraphShare(const TrainingJob& job) {
  switch (job.strategy.graphs) {
    case CudaGraphs::kNone:
      return 1;
    case CudaGraphs::kPartial:
      return job.cluster.constants.partial_graph_launches;
    case CudaGraphs::kFull:
      return 0;
  }
  return 1;
}

PassTime LaunchTime(double launches, const TrainingJob& job) {
  return {.host = launches * job.cluster.stack.host_seconds *
                  job.cluster.gpu.host_factor * GraphShare(job)};
}

double ElementwiseSeconds(double bytes, const TrainingJob& job) {
  return TrafficSeconds(bytes, job) * job.cluster.stack.elementwise;
}

double AttentionSeconds(double flops, const TrainingJob& job) {
  if (flops == 0) return 0;
  const Accelerator& gpu = job.cluster.gpu;
  const double share = job.strategy.attention == AttentionKernel::kFlashNew
                           ? gpu.flash_new_share
                           : gpu.flash_share;
  const double small =
      job.shape.QueryDim() < 128 ? job.cluster.kernels.small_head_share : 1;
  return flops /
         (gpu.bf16_rate * share * small * job.cluster.stack.attention_factor);
}

double ExposedShare(GroupKind group, const TrainingJob& job) {
  const TrainingStrategy& strategy = job.strategy;
  const ModelConstants& constants = job.cluster.constants;
  switch (group) {
    case GroupKind::kTensor:
      return strategy.overlaps_tensor ? constants.exposed_tensor : 1;
    case GroupKind::kExpert:
    case GroupKind::kExpertTensor:
      return strategy.overlaps_expert ? constants.exposed_expert : 1;
    case GroupKind::kContext:
      return 1;
  }
  return 1;
}

double SentSeconds(const Collective& collective, const TrainingJob& job) {
  if (collective.kind == CollectiveKind::kNone) return 0;
  return CollectiveSeconds(collective.kind, collective.bytes,
                           GroupOf(collective.group, job.strategy), job) *
         ExposedShare(collective.group, job);
}

// Returns the exposed seconds of an exchange: the ring of keys and values runs beside
// attention, other exchanges do not.
double ExposedBesideAttention(double exchange_seconds, double attention,
                              const TrainingJob& job) {
  const bool is_ring = job.strategy.context_exchange == ContextExchange::kRing;
  return attention > 0 && is_ring ? std::max(.1 * exchange_seconds,
                                             exchange_seconds - .8 * attention)
                                  : exchange_seconds;
}

ExposedTime ByGroup(GroupKind group, double seconds) {
  switch (group) {
    case GroupKind::kTensor:
      return {.tensor = seconds};
    case GroupKind::kContext:
      return {.context = seconds};
    case GroupKind::kExpert:
    case GroupKind::kExpertTensor:
      return {.expert = seconds};
  }
  return {};
}

// Returns the share of tokens' copies that go to nodes, or to ranks, if a token that goes to
// several experts of one goes there once.
double CopiesSent(const TrainingJob& job, double places) {
  if (!job.strategy.dedupes_tokens || places <= 1) return 1;
  return DistinctShare(places, static_cast<double>(job.shape.top_k));
}

double AllToAllSeconds(double bytes, RankGroup group, const TrainingJob& job,
                       bool is_dispatch) {
  const Cluster& cluster = job.cluster;
  const double size = static_cast<double>(group.size);
  const double ranks_inside =
      std::clamp(static_cast<double>(cluster.domain / group.stride), 1.0, size);
  const double nodes = size / ranks_inside;
  const double nvlink = cluster.gpu.nvlink_rate * cluster.gpu.nvlink_share;
  const double network =
      cluster.network_rate * (is_dispatch && job.strategy.dedupes_tokens
                                  ? cluster.constants.dedupe_network_share
                                  : cluster.stack.network_share);
  const double near_copies = is_dispatch ? CopiesSent(job, size) : 1;
  const double near =
      bytes * near_copies * (ranks_inside - 1) / ranks_inside / nvlink;
  if (nodes <= 1) return near + cluster.kernels.nvlink_latency;
  const double chosen_nodes =
      job.shape.routed_groups > 0
          ? std::min(nodes, static_cast<double>(job.shape.routed_groups))
          : nodes;
  const double copies = is_dispatch ? CopiesSent(job, chosen_nodes) : 1;
  const double far = bytes * copies * (nodes - 1) / nodes / network;
  return std::max(near, far) + cluster.stack.network_latency;
}

DataGroups Divided(RankGroup all, int64_t copies) {
  const int64_t replicas = std::min(copies, all.size);
  const RankGroup shards{all.size / replicas, all.stride};
  return {shards, {replicas, shards.size * all.stride}};
}

}  // namespace

double TrafficSeconds(double bytes, const TrainingJob& job) {
  return bytes / (job.cluster.gpu.memory_rate * job.cluster.gpu.memory_share);
}

double ProductSeconds(const MatrixProduct& p, const TrainingJob& job,
                      double output_width) {
  if (p.groups == 0) return 0;
  const Accelerator& gpu = job.cluster.gpu;
  const KernelConstants& kernels = job.cluster.kernels;
  const bool is_low = p.is_low_precision && job.strategy.IsLowPrecision();
  const double peak = is_low ? gpu.Rate(job.strategy.precision) : gpu.bf16_rate;
  const bool is_rowwise =
      is_low && job.strategy.precision == ProductPrecision::kFp8Rowwise;
  const double rate = peak * job.cluster.stack.product_factor *
                      (is_low ? gpu.fp8_product_share : gpu.product_share) *
                      (is_rowwise ? job.cluster.constants.rowwise_share : 1);
  double best = 0;
  for (const Tile& tile : kernels.tiles) {
    const double tiles = p.groups * std::ceil(p.rows / tile.rows) *
                         std::ceil(p.columns / tile.columns);
    const double full = tiles / gpu.multiprocessors;
    const double waves =
        std::max(1.0, full + kernels.idle_share * (std::ceil(full) - full));
    const double wave = 2 * tile.rows * tile.columns *
                        (p.inner + kernels.tile_overhead) *
                        gpu.multiprocessors / (rate * tile.share);
    const double seconds = waves * wave;
    if (best == 0 || seconds < best) best = seconds;
  }
  const double bytes =
      p.groups * ((is_low ? 1 : 2) * p.inner * (p.rows + p.columns) +
                  output_width * p.rows * p.columns);
  return std::max(best, TrafficSeconds(bytes, job));
}

double CollectiveSeconds(CollectiveKind kind, double bytes, RankGroup group,
                         const TrainingJob& job) {
  if (group.size <= 1 || bytes == 0 || kind == CollectiveKind::kNone) return 0;
  if (kind == CollectiveKind::kAllToAll || kind == CollectiveKind::kDispatch) {
    return AllToAllSeconds(bytes, group, job,
                           kind == CollectiveKind::kDispatch);
  }
  const Cluster& cluster = job.cluster;
  const double size = static_cast<double>(group.size);
  const double ranks_inside =
      std::clamp(static_cast<double>(cluster.domain / group.stride), 1.0, size);
  const double nodes = size / ranks_inside;
  const double nvlink = cluster.gpu.nvlink_rate * cluster.gpu.nvlink_share;
  double seconds = bytes * (size - 1) / size / nvlink +
                   cluster.kernels.nvlink_latency * std::log2(size);
  if (nodes > 1) {
    const double network =
        ranks_inside * cluster.network_rate * cluster.stack.network_share;
    // Rings of large groups have many steps: a tree takes over.
    const double steps = std::min(nodes - 1, 4 * std::log2(nodes));
    seconds = std::max(seconds, bytes * (nodes - 1) / nodes / network) +
              steps * cluster.stack.network_latency;
  }
  return kind == CollectiveKind::kAllReduce ? 2 * seconds : seconds;
}

double MessageSeconds(double bytes, const TrainingJob& job) {
  const Cluster& cluster = job.cluster;
  const TrainingStrategy& s = job.strategy;
  // Stages are as far apart as a stage has ranks.
  const bool is_near = s.gpus <= cluster.domain;
  const double rate = is_near
                          ? cluster.gpu.nvlink_rate * cluster.gpu.nvlink_share
                          : cluster.network_rate * cluster.stack.network_share;
  return bytes / rate + (is_near ? cluster.kernels.nvlink_latency
                                 : cluster.stack.network_latency);
}

RankGroup GroupOf(GroupKind kind, const TrainingStrategy& s) {
  switch (kind) {
    case GroupKind::kTensor:
      return {s.tensor, 1};
    case GroupKind::kContext:
      return {s.context, s.tensor};
    case GroupKind::kExpert:
      return {s.expert, s.expert_tensor};
    case GroupKind::kExpertTensor:
      return {s.expert_tensor, 1};
  }
  return {};
}

DataGroups DenseDataGroups(const TrainingStrategy& s) {
  return Divided({s.Data() * s.context, s.tensor}, s.optimizer_copies);
}

DataGroups ExpertDataGroups(const TrainingStrategy& s) {
  return Divided({s.ExpertData(), s.expert * s.expert_tensor},
                 s.optimizer_copies);
}

PassTime ForwardTime(const LayerOperation& operation, const TrainingJob& job) {
  const MatrixProduct& p = operation.product;
  PassTime time = LaunchTime(operation.forward_launches, job);
  const double attention = AttentionSeconds(operation.attention_flops, job);
  time.compute += ProductSeconds(p, job, 2) + attention +
                  ElementwiseSeconds(operation.forward_bytes, job);
  time.communication =
      ByGroup(operation.forward_sent.group,
              ExposedBesideAttention(SentSeconds(operation.forward_sent, job),
                                     attention, job));
  return time * operation.share;
}

PassTime BackwardTime(const LayerOperation& operation, const TrainingJob& job) {
  const MatrixProduct& p = operation.product;
  PassTime time = LaunchTime(operation.backward_launches, job);
  const double attention = kBackwardAttention /
                           job.cluster.constants.backward_attention_share *
                           AttentionSeconds(operation.attention_flops, job);
  time.compute += attention + ElementwiseSeconds(operation.backward_bytes, job);
  if (p.groups > 0) {
    MatrixProduct input = p;
    input.columns = p.inner;
    input.inner = p.columns;
    MatrixProduct weight = p;
    weight.rows = p.inner;
    weight.inner = p.rows;
    // Gradients of weights are added to those of earlier microbatches.
    const bool accumulates = p.has_weights && job.strategy.fsdp <= 1;
    const double width = accumulates ? 2 * job.strategy.gradient_bytes : 2;
    const double weights = p.is_frozen ? 0 : ProductSeconds(weight, job, width);
    time.weights = p.has_weights ? weights : 0;
    time.compute += ProductSeconds(input, job, 2) + weights;
  }
  time.communication =
      ByGroup(operation.backward_sent.group,
              ExposedBesideAttention(SentSeconds(operation.backward_sent, job),
                                     attention, job));
  return time * operation.share;
}

}  // namespace acplan::costmodel
