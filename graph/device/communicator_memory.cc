// A connection has a buffer of each protocol: LL of 512 KiB, LL128 of 4,800 KiB, Simple of
// 4 MiB (computeBuffSizes in init.cc: DEFAULT_LL_BUFFSIZE = 8 lines x 512 threads x 8 steps
// x 16 bytes, DEFAULT_LL128_BUFFSIZE = 120 x 640 x 8 x 8 bytes, DEFAULT_BUFFSIZE), and a
// page of flags at either end.
//
// Over NVLink (transport/p2p.cc) both ends are GPU memory in steps of 2 MiB: 2 MiB at the
// sender, 10 MiB at the receiver. If the receiver reads, the Simple buffer is at the
// sender: 6 MiB at each. The sum of a send and a receive is 12 MiB either way.
//
// Over a network (transport/net.cc), LL128 and Simple are GPU memory with GPUDirect:
// 8.69 MiB, 10 in steps of 2 MiB, at either end. Sends and receives share one buffer for
// each direction, of 16 steps for each channel. Every communicator has the one for sends,
// since initTransportsRank connects to its proxy.
#include "graph/device/communicator_memory.h"

#include <algorithm>
#include <bit>
#include <cmath>

namespace acplan::graph {
namespace {

constexpr int64_t kMib = int64_t{1} << 20;
constexpr int64_t kNearPair = 12 * kMib;   // a send and a receive over NVLink
constexpr int64_t kFarPair = 20 * kMib;    // over a network
constexpr int64_t kSharedSteps = 16;       // NCCL_SHARED_STEPS
constexpr int64_t kNearChunk = 512 << 10;  // NCCL_P2P_NVL_CHUNKSIZE
constexpr int64_t kFarChunk = 128 << 10;   // NCCL_P2P_NET_CHUNKSIZE
// Channels to each peer, if some are reached over a network.
constexpr int64_t kFarPeerChannels = 2;

int64_t RingChannels(const Communicator& communicator, const NcclLinks& links) {
  if (communicator.IsNear()) return links.ring_channels;
  // A ring for each GPU of a node, as each has a network interface, twice
  // (ncclTopoPostset); twice more where there are few and GPUs are fast.
  const int64_t channels = 2 * communicator.near_ranks;
  return links.doubles_channels && channels < 16 ? 2 * channels : channels;
}

int64_t RingBytes(const Communicator& communicator, const NcclLinks& links) {
  const int64_t channels = RingChannels(communicator, links);
  if (communicator.IsNear()) {
    // In half of the channels a rank of a tree is no end of it.
    const bool has_trees =
        communicator.connects_trees && communicator.ranks > 2;
    return (channels + (has_trees ? channels / 2 : 0)) * kNearPair;
  }
  // For each channel, one rank of a node sends to the next node, and one receives.
  const int64_t near = communicator.near_ranks;
  return channels * ((near - 1) * kNearPair + kFarPair) / near;
}

int64_t PeerBytes(const Communicator& communicator, const NcclLinks& links) {
  const int64_t channels =
      communicator.IsNear() ? links.peer_channels : kFarPeerChannels;
  return communicator.near_peers * channels * kNearPair;
}

// Returns the buffer that sends share; receives have another.
int64_t SharedBytes(const Communicator& communicator, const NcclLinks& links) {
  if (communicator.IsNear()) {
    return links.peer_channels * kSharedSteps * kNearChunk;
  }
  const auto channels = static_cast<uint64_t>(
      std::clamp<int64_t>(RingChannels(communicator, links), 1, 64));
  return static_cast<int64_t>(std::bit_ceil(channels)) * kSharedSteps *
         kFarChunk;
}

}  // namespace

NcclLinks LinksOf(std::string_view architecture) {
  // Six links of NVLink 2, each of which is a channel, twice.
  if (architecture == "sm70") return {12, 16, false};
  if (architecture == "sm80") return {24, 32, false};
  // NVIDIA/nccl#2363 shows 64 channels of sends on a B300.
  if (architecture.starts_with("sm10")) return {24, 64, true};
  // Cards without NVLink.
  if (architecture == "sm75" || architecture == "sm86" ||
      architecture == "sm89" || architecture == "sm120") {
    return {4, 4, false};
  }
  return {};
}

int64_t NcclBytes(const Communicator& communicator, const NcclLinks& links) {
  if (communicator.ranks <= 1) return 0;
  const int64_t shared = SharedBytes(communicator, links);
  return shared + (communicator.far_peers > 0 ? shared : 0) +
         (communicator.has_rings ? RingBytes(communicator, links) : 0) +
         PeerBytes(communicator, links);
}

int64_t RcclBytes(int64_t communicators) {
  if (communicators == 0) return 0;
  return 1024 * kMib + (communicators - 1) * 666 * kMib;
}

}  // namespace acplan::graph
