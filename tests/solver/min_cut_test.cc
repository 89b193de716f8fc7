#include "solver/min_cut.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <random>
#include <stdexcept>
#include <vector>

#include "tests/support/repetitions.h"

namespace acplan::solver {
namespace {

using test_support::Repetitions;

int64_t CapacityOf(const FlowNetwork& network,
                   const std::vector<char>& is_with_source) {
  int64_t capacity = 0;
  for (const FlowNetwork::Edge& edge : network.edges) {
    const bool is_cut =
        is_with_source[edge.from] != 0 && is_with_source[edge.to] == 0;
    if (is_cut) capacity = std::min(kUncuttable, capacity + edge.capacity);
  }
  return capacity;
}

int64_t LeastOfAllCuts(const FlowNetwork& network) {
  int64_t least = std::numeric_limits<int64_t>::max();
  for (uint32_t inner = 0; inner >> (network.nodes - 2) == 0; ++inner) {
    std::vector<char> side = {1, 0};
    for (int v = 2; v < network.nodes; ++v)
      side.push_back(inner >> (v - 2) & 1);
    least = std::min(least, CapacityOf(network, side));
  }
  return least;
}

// Returns a maximum flow by any paths with remaining capacity.
int64_t FlowByPaths(const FlowNetwork& network) {
  std::vector<std::vector<int64_t>> capacity_left(
      network.nodes, std::vector<int64_t>(network.nodes, 0));
  for (const FlowNetwork::Edge& edge : network.edges) {
    capacity_left[edge.from][edge.to] += edge.capacity;
  }
  int64_t flow = 0;
  for (;;) {
    std::vector<int> before(network.nodes, -1);
    std::vector<int> queue = {FlowNetwork::kSource};
    for (size_t k = 0; k < queue.size(); ++k) {
      for (int v = 1; v < network.nodes; ++v) {
        if (before[v] >= 0 || capacity_left[queue[k]][v] == 0) continue;
        before[v] = queue[k];
        queue.push_back(v);
      }
    }
    if (before[FlowNetwork::kSink] < 0) return flow;
    int64_t more = kUncuttable;
    const auto follow_path = [&](const auto& act) {
      for (int v = FlowNetwork::kSink; v != FlowNetwork::kSource;
           v = before[v]) {
        act(before[v], v);
      }
    };
    follow_path(
        [&](int u, int v) { more = std::min(more, capacity_left[u][v]); });
    follow_path([&](int u, int v) {
      capacity_left[u][v] -= more;
      capacity_left[v][u] += more;
    });
    flow += more;
  }
}

FlowNetwork RandomNetwork(std::mt19937& random, int inner, int edges) {
  FlowNetwork network;
  for (int v = 0; v < inner; ++v) network.AddNode();
  const int most = random() % 2 == 0 ? 3 : 1000;
  for (int e = 0; e < edges; ++e) {
    const auto from = static_cast<int>(random() % network.nodes);
    const auto to = static_cast<int>(random() % network.nodes);
    const bool is_inner = from > 1 && to > 1;
    if (from == FlowNetwork::kSource && to == FlowNetwork::kSink) continue;
    network.edges.push_back({from, to,
                             is_inner && random() % 4 == 0
                                 ? kUncuttable
                                 : static_cast<int64_t>(random() % most)});
  }
  return network;
}

TEST(MinCutTest, IsTheLeastOfAllCuts) {
  std::mt19937 random(1);
  int64_t all = 0;
  for (int round = 0; round < Repetitions(3000); ++round) {
    SCOPED_TRACE(round);
    const FlowNetwork network =
        RandomNetwork(random, static_cast<int>(random() % 9),
                      static_cast<int>(random() % 40));
    const MinCut cut = FindMinCut(network);
    ASSERT_EQ(cut.capacity, LeastOfAllCuts(network));
    ASSERT_EQ(cut.capacity, CapacityOf(network, cut.is_with_source));
    ASSERT_TRUE(cut.is_with_source[FlowNetwork::kSource]);
    ASSERT_FALSE(cut.is_with_source[FlowNetwork::kSink]);
    all += cut.capacity;
  }
  EXPECT_GT(all, 0);
}

TEST(MinCutTest, IsAsMuchAsFlows) {
  std::mt19937 random(2);
  for (int round = 0; round < Repetitions(100); ++round) {
    SCOPED_TRACE(round);
    const int inner = 20 + static_cast<int>(random() % 80);
    const FlowNetwork network = RandomNetwork(
        random, inner, inner * (2 + static_cast<int>(random() % 6)));
    const MinCut cut = FindMinCut(network);
    ASSERT_EQ(cut.capacity, FlowByPaths(network));
    ASSERT_EQ(cut.capacity, CapacityOf(network, cut.is_with_source));
  }
}

TEST(MinCutTest, RefusesWhatIsNoNetwork) {
  FlowNetwork network;
  network.edges = {{0, 2, 1}};
  EXPECT_THROW(FindMinCut(network), std::invalid_argument);
  network.AddNode();
  EXPECT_EQ(FindMinCut(network).capacity, 0);
  network.edges[0].capacity = -1;
  EXPECT_THROW(FindMinCut(network), std::invalid_argument);
}

}  // namespace
}  // namespace acplan::solver
