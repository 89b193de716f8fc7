#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace acplan::solver {

// Minimum cuts in a network with a source and a sink.

// What no cut goes through.
inline constexpr int64_t kUncuttable = std::numeric_limits<int64_t>::max() / 4;

struct FlowNetwork {
  struct Edge {
    int from = 0;
    int to = 0;
    // At least 0. All of those from the source that can be cut are at most
    // kUncuttable together.
    int64_t capacity = 0;
  };

  static constexpr int kSource = 0;
  static constexpr int kSink = 1;

  // Adds a node; returns its number.
  int AddNode() { return nodes++; }

  int nodes = 2;
  std::vector<Edge> edges = {};
};

struct MinCut {
  int64_t capacity = 0;  // of the edges from the source's side to the sink's
  std::vector<char> is_with_source = {};  // a node
};

// Returns a cut of the least capacity. The source has no edge to the sink, and is
// not tied to it by edges that cannot be cut. Throws std::invalid_argument for
// nodes that there are not and capacities below 0.
MinCut FindMinCut(const FlowNetwork& network);

}  // namespace acplan::solver
