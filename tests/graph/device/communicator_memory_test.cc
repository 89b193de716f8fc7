#include "graph/device/communicator_memory.h"

#include <gtest/gtest.h>

namespace acplan::graph {
namespace {

constexpr int64_t kMiBytes = int64_t{1} << 20;

Communicator Rings(int64_t ranks, int64_t near_ranks) {
  return {.ranks = ranks, .near_ranks = near_ranks, .has_rings = true};
}

// NVIDIA/nccl#964: on four A100 with NVLink, each group of two takes 544 MB, each larger
// one 688 MB, with NCCL of PyTorch 2.0.
TEST(NcclBytes, AreThoseMeasuredOnA100) {
  const NcclLinks links = LinksOf("sm80");
  for (const int64_t ranks : {2, 3, 4}) {
    Communicator group = Rings(ranks, ranks);
    group.connects_trees = true;
    EXPECT_EQ(NcclBytes(group, links), (ranks == 2 ? 544 : 688) * kMiBytes);
    group.connects_trees = false;
    EXPECT_EQ(NcclBytes(group, links), 544 * kMiBytes);
  }
}

// NVIDIA/nccl#2363: a communicator on a B300 asks for 536,870,912 bytes, before it sends.
TEST(NcclBytes, ShareTheBufferMeasuredOnB300) {
  const Communicator silent{.ranks = 2, .near_ranks = 2};
  EXPECT_EQ(NcclBytes(silent, LinksOf("sm103")), 536870912);
}

// NVIDIA/nccl#1685: the first all-to-all of eight H100 takes 3.28 GB, of which code is a
// part. Its buffers have 10,485,760 and 2,097,152 bytes.
TEST(NcclBytes, AreMostOfThoseMeasuredForAnAllToAll) {
  const Communicator group{.ranks = 8, .near_ranks = 8, .near_peers = 7};
  const double bytes = static_cast<double>(NcclBytes(group, LinksOf("sm90")));
  EXPECT_EQ(bytes, 256.0 * kMiBytes + 7 * 32 * (10485760.0 + 2097152.0));
  EXPECT_LT(bytes, 3.28e9);
  EXPECT_GT(bytes, .9 * 3.28e9);
}

// NVIDIA/nccl#1189: two nodes with two H20 each have eight channels of rings.
TEST(NcclBytes, HaveTheChannelsSeenBetweenNodes) {
  const int64_t channels = 8;
  // Half of the ranks' sends go to the other node.
  EXPECT_EQ(NcclBytes(Rings(4, 2), LinksOf("sm90")),
            channels * 16 * (128 << 10) + channels * (12 + 20) / 2 * kMiBytes);
  // GPUs before Hopper have half as many.
  EXPECT_EQ(NcclBytes(Rings(4, 2), LinksOf("sm80")),
            NcclBytes(Rings(4, 2), LinksOf("sm90")) / 2);
  EXPECT_EQ(NcclBytes(Rings(16, 8), LinksOf("sm80")),
            NcclBytes(Rings(16, 8), LinksOf("sm90")));
}

TEST(NcclBytes, RiseWithPeersAndVanishForOneRank) {
  const NcclLinks links = LinksOf("sm90");
  EXPECT_EQ(NcclBytes(Rings(1, 1), links), 0);
  Communicator stages{.ranks = 4, .near_ranks = 2, .near_peers = 1};
  const int64_t one = NcclBytes(stages, links);
  stages.far_peers = 1;
  EXPECT_GT(NcclBytes(stages, links), one);
  stages.near_ranks = 4;
  stages.near_peers = 2;
  stages.far_peers = 0;
  EXPECT_EQ(NcclBytes(stages, links), (256 + 2 * 32 * 12) * kMiBytes);
}

// Lumi-supercomputer/LUMI-AI-Guide#111: a GiB for the first, .65 for each further one.
TEST(RcclBytes, AreThoseMeasuredOnLumi) {
  EXPECT_EQ(RcclBytes(0), 0);
  EXPECT_EQ(RcclBytes(1), 1024 * kMiBytes);
  EXPECT_NEAR(static_cast<double>(RcclBytes(3) - RcclBytes(2)),
              .65 * 1024 * kMiBytes, kMiBytes);
}

}  // namespace
}  // namespace acplan::graph
