#include "costmodel/training/memory/memory_limit.h"

#include <algorithm>
#include <cstdint>

namespace acplan::costmodel {
namespace {

// Returns a communicator of `ranks` ranks, neighbours of which are `stride` ranks apart.
graph::Communicator GroupOf(const TrainingJob& job, int64_t ranks,
                            int64_t stride) {
  return {
      .ranks = ranks,
      .near_ranks = std::clamp<int64_t>(job.cluster.domain / stride, 1, ranks)};
}

graph::Communicator RingOf(const TrainingJob& job, int64_t ranks,
                           int64_t stride) {
  graph::Communicator group = GroupOf(job, ranks, stride);
  group.has_rings = true;
  return group;
}

// Each rank exchanges with the `peers` nearest others.
graph::Communicator PeersOf(const TrainingJob& job, int64_t ranks,
                            int64_t stride, int64_t peers) {
  graph::Communicator group = GroupOf(job, ranks, stride);
  peers = std::min(peers, ranks - 1);
  group.near_peers = std::min(peers, group.near_ranks - 1);
  group.far_peers = peers - group.near_peers;
  return group;
}

graph::Communicator ContextGroup(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  switch (s.context_exchange) {
    case ContextExchange::kRing:
      return PeersOf(job, s.context, s.tensor, 2);
    case ContextExchange::kAllToAll:
      return PeersOf(job, s.context, s.tensor, s.context - 1);
    case ContextExchange::kAllGather:
      break;
  }
  return RingOf(job, s.context, s.tensor);
}

// Ranks of experts are neighbours, then those of their data parallelism.
void AddExpertGroups(const TrainingJob& job,
                     std::vector<graph::Communicator>& groups) {
  const TrainingStrategy& s = job.strategy;
  if (!job.shape.IsMoe()) return;
  // DeepEP's buffers are not NCCL's.
  if (!s.dedupes_tokens) {
    groups.push_back(PeersOf(job, s.expert, s.expert_tensor, s.expert - 1));
  }
  groups.push_back(RingOf(job, s.expert_tensor, 1));
  groups.push_back(RingOf(job, s.ExpertData(), s.expert * s.expert_tensor));
}

}  // namespace

MemoryLimit LimitOfGpu(const Accelerator& gpu) {
  return {.bytes = gpu.offer ? static_cast<double>(gpu.offer->AvailableBytes())
                             : gpu.memory,
          .has_communicators = gpu.offer.has_value(),
          .allocator_loss = gpu.offer ? kAllocatorLoss : 0};
}

std::vector<graph::Communicator> CommunicatorsOf(const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  const int64_t model = s.tensor * s.context;
  // Gradients are summed over context parallelism, too.
  const int64_t copies = std::max<int64_t>(1, s.optimizer_copies);
  const int64_t shards = std::max<int64_t>(1, s.Data() * s.context / copies);
  std::vector<graph::Communicator> groups = {
      RingOf(job, s.gpus, 1),
      RingOf(job, s.tensor, 1),
      ContextGroup(job),
      RingOf(job, shards, s.tensor),
      RingOf(job, copies, s.tensor * shards),
      PeersOf(job, s.pipeline, model * s.Data(), 2)};
  AddExpertGroups(job, groups);
  std::erase_if(groups, [](const graph::Communicator& group) {
    return group.ranks <= 1;
  });
  return groups;
}

double CommunicatorBytes(const TrainingJob& job) {
  const std::vector<graph::Communicator> groups = CommunicatorsOf(job);
  const std::string architecture =
      job.cluster.gpu.offer ? job.cluster.gpu.offer->architecture : "";
  if (architecture.starts_with("gfx")) {
    return static_cast<double>(graph::RcclBytes(std::ssize(groups)));
  }
  const graph::NcclLinks links = graph::LinksOf(architecture);
  int64_t bytes = 0;
  for (const graph::Communicator& group : groups) {
    bytes += NcclBytes(group, links);
  }
  return static_cast<double>(bytes);
}

double ReservedBytes(const MemoryLimit& limit, const TrainingJob& job) {
  if (!limit.has_communicators) return limit.bytes;
  return std::max(0.0, limit.bytes - CommunicatorBytes(job));
}

double PyTorchBytes(const MemoryLimit& limit, const TrainingJob& job) {
  return (1 - limit.allocator_loss) * ReservedBytes(limit, job);
}

double KnownBudgets::Find(const MemoryLimit& limit, const TrainingJob& job) {
  const TrainingStrategy& s = job.strategy;
  const auto [entry, is_new] =
      budgets_.try_emplace({s.pipeline, s.optimizer_copies}, 0);
  if (is_new) entry->second = PyTorchBytes(limit, job);
  return entry->second;
}

}  // namespace acplan::costmodel
