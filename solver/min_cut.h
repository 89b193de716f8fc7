#pragma once

#include <cstdint>
#include <limits>
#include <vector>

namespace acplan::solver {

// Minimum cuts in a network with a source and a sink.

// The capacity of an edge that no cut goes through.
inline constexpr int64_t kUncuttable = std::numeric_limits<int64_t>::max() / 4;

struct FlowNetwork {
  struct Edge {
    int from = 0;
    int to = 0;
    // At least 0. The capacities of all edges from the source that can be cut sum up to at
    // most kUncuttable.
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
  // The sum over edges from the source's side to the sink's.
  int64_t capacity = 0;
  std::vector<char> is_with_source = {};  // indexed by node
};

// Returns a cut of the least capacity. Requires that the source has no edge to the sink and
// no path of uncuttable edges to it. Throws std::invalid_argument for an edge at a node
// that does not exist and for a negative capacity, and Stopped (stop.h).
MinCut FindMinCut(const FlowNetwork& network);

}  // namespace acplan::solver
