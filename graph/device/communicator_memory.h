#pragma once

#include <cstdint>
#include <string_view>

// The GPU memory of NCCL's communicators, which is allocated beside PyTorch's. The formula
// and its constants are those of NCCL 2.30 (docs/device_memory.md names the functions);
// the sizes of buffers are the same since 2.14.
namespace acplan::graph {

// How NCCL uses the links of a GPU.
struct NcclLinks {
  // Channels of rings among GPUs that NVLink joins, and of sends and receives there.
  int64_t ring_channels = 24;
  int64_t peer_channels = 32;
  // Rings between nodes have four channels for each GPU of a node, up to 16; else two.
  bool doubles_channels = true;
};

// Returns the links of an architecture ("sm90"); those of sm90 for others.
NcclLinks LinksOf(std::string_view architecture);

// A communicator, as one of its ranks sees it.
struct Communicator {
  int64_t ranks = 1;
  int64_t near_ranks = 1;  // that NVLink joins with this one, itself included
  bool has_rings = false;  // all-reduce, all-gather, reduce-scatter, broadcast
  // NCCL up to 2.21 connects rings and trees at once; later ones what a collective uses.
  bool connects_trees = false;
  // The ranks with which it exchanges by send and receive, or all-to-all.
  int64_t near_peers = 0;
  int64_t far_peers = 0;

  bool IsNear() const { return near_ranks == ranks; }
};

// Returns the bytes that NCCL allocates on a rank's GPU for a communicator, on average over
// the ranks of a node; 0 for one rank. Left out: NVLS and user buffers, trees that are
// connected later, PXN, and the code of kernels.
int64_t NcclBytes(const Communicator& communicator, const NcclLinks& links);

// Returns the bytes of RCCL for so many communicators: measured, not a formula.
int64_t RcclBytes(int64_t communicators);

}  // namespace acplan::graph
