#include "solver/min_cut.h"

#include <algorithm>
#include <cstddef>
#include <stdexcept>

#include "solver/stop.h"

// Push-relabel (Goldberg and Tarjan), first phase: a preflow that brings as much as
// possible to the sink.
//
// Idea. The source floods its edges. A node with more coming in than going out (excess)
// pushes it on to lower nodes, along edges with remaining capacity. A node's height is at
// most its distance to the sink in such edges. If no neighbour is lower, the node is raised
// to just above the lowest one. A node whose height is the number of nodes has no way to
// the sink any more: its excess stays there. Once no node below that height has excess, the
// flow into the sink is a maximum, since no path with remaining capacity leads from a node
// with excess to the sink, and the nodes without a path to the sink are the source's side
// of a cut that is full: a minimum.
//
// The highest node with excess goes first. Heights are made exact (by a search from the
// sink) after as many raises as there are nodes. If no node has some height, all nodes
// above it are cut off (gap). None of this changes the result.

namespace acplan::solver {
namespace {

// The number of nodes between looks at the clock.
constexpr int64_t kTurnsABreak = 1000;

class PushRelabel {
 public:
  explicit PushRelabel(const FlowNetwork& network)
      : nodes_(network.nodes),
        first_(nodes_.size() + 1, 0),
        active_(nodes_.size() + 1),
        listed_(nodes_.size() + 1),
        count_at_(nodes_.size() + 1, 0) {
    for (const FlowNetwork::Edge& edge : network.edges) {
      ++first_[edge.from + 1];
      ++first_[edge.to + 1];
    }
    for (int v = 0; v < Count(); ++v) first_[v + 1] += first_[v];
    std::vector<int> next(first_.begin(), first_.end() - 1);
    arcs_.resize(first_.back());
    for (const FlowNetwork::Edge& edge : network.edges) {
      const int forth = next[edge.from]++;
      const int back = next[edge.to]++;
      arcs_[forth] = {edge.to, back, edge.capacity};
      arcs_[back] = {edge.from, forth, 0};
    }
  }

  MinCut Run() {
    for (int a = first_[kSource]; a < first_[kSource + 1]; ++a) {
      Push(kSource, a, arcs_[a].residual);
    }
    FindHeights();
    for (int64_t turn = 0; highest_ >= 0; ++turn) {
      if (turn % kTurnsABreak == 0) StopIfDue();
      std::vector<int>& at_highest = active_[highest_];
      if (at_highest.empty()) {
        --highest_;
        continue;
      }
      const int v = at_highest.back();
      at_highest.pop_back();
      // The node may have been cut off since it was listed.
      if (nodes_[v].height == highest_) Discharge(v);
      if (raised_ >= Count()) FindHeights();
    }
    FindHeights();
    MinCut cut{.capacity = nodes_[kSink].excess};
    cut.is_with_source.reserve(nodes_.size());
    for (const Node& node : nodes_) {
      cut.is_with_source.push_back(node.height >= Count() ? 1 : 0);
    }
    return cut;
  }

 private:
  static constexpr int kSource = FlowNetwork::kSource;
  static constexpr int kSink = FlowNetwork::kSink;

  struct Node {
    int height = 0;
    int arc = 0;  // the arc to look at next
    int64_t excess = 0;
  };
  struct Arc {
    int to = 0;
    int reverse = 0;
    int64_t residual = 0;
  };

  int Count() const { return static_cast<int>(nodes_.size()); }

  void Push(int from, int arc, int64_t flow) {
    Arc& forward = arcs_[arc];
    forward.residual -= flow;
    arcs_[forward.reverse].residual += flow;
    nodes_[from].excess -= flow;
    Node& to = nodes_[forward.to];
    const bool wakes = to.excess == 0 && flow > 0;
    to.excess += flow;
    if (wakes) Activate(forward.to);
  }

  void Activate(int v) {
    const int height = nodes_[v].height;
    if (v == kSource || v == kSink || height >= Count()) return;
    active_[height].push_back(v);
    highest_ = std::max(highest_, height);
  }

  void Discharge(int v) {
    Node& node = nodes_[v];
    while (node.excess > 0 && node.height < Count()) {
      if (node.arc == first_[v + 1]) {
        Raise(v);
        continue;
      }
      const Arc& arc = arcs_[node.arc];
      if (arc.residual > 0 && nodes_[arc.to].height + 1 == node.height) {
        Push(v, node.arc, std::min(node.excess, arc.residual));
      } else {
        ++node.arc;
      }
    }
  }

  void Raise(int v) {
    ++raised_;
    Node& node = nodes_[v];
    int height = Count();
    for (int a = first_[v]; a < first_[v + 1]; ++a) {
      if (arcs_[a].residual > 0) {
        height = std::min(height, nodes_[arcs_[a].to].height + 1);
      }
    }
    const int before = node.height;
    node.arc = first_[v];
    SetHeight(v, height);
    if (--count_at_[before] == 0) CutOffAbove(before);
  }

  void SetHeight(int v, int height) {
    nodes_[v].height = height;
    ++count_at_[height];
    if (height < Count()) listed_[height].push_back(v);
  }

  // Cuts off all nodes above a height that no node has.
  void CutOffAbove(int height) {
    for (int h = height + 1; h < Count() && count_at_[h] > 0; ++h) {
      for (const int v : listed_[h]) {
        if (nodes_[v].height != h) continue;
        --count_at_[h];
        SetHeight(v, Count());
      }
      listed_[h].clear();
    }
  }

  // Sets all heights to the exact distances to the sink.
  void FindHeights() {
    raised_ = 0;
    highest_ = -1;
    for (Node& node : nodes_) node.height = Count();
    std::ranges::fill(count_at_, 0);
    for (std::vector<int>& nodes : active_) nodes.clear();
    for (std::vector<int>& nodes : listed_) nodes.clear();
    count_at_.back() = Count() - 1;
    SetHeight(kSink, 0);
    std::vector<int> queue = {kSink};
    for (size_t k = 0; k < queue.size(); ++k) {
      const int v = queue[k];
      for (int a = first_[v]; a < first_[v + 1]; ++a) {
        const Arc& arc = arcs_[a];
        const bool is_new = arc.to != kSource &&
                            nodes_[arc.to].height == Count() &&
                            arcs_[arc.reverse].residual > 0;
        if (!is_new) continue;
        --count_at_.back();
        SetHeight(arc.to, nodes_[v].height + 1);
        queue.push_back(arc.to);
      }
    }
    for (const int v : queue) {
      nodes_[v].arc = first_[v];
      if (nodes_[v].excess > 0) Activate(v);
    }
  }

  std::vector<Node> nodes_;
  std::vector<int> first_;  // each node's first arc
  std::vector<Arc> arcs_;
  // Indexed by height: nodes with excess, and all nodes that had the height.
  std::vector<std::vector<int>> active_, listed_;
  std::vector<int> count_at_;  // the number of nodes at each height
  int highest_ = -1;           // the largest height of a node with excess
  int raised_ = 0;             // the number of raises since heights were exact
};

}  // namespace

MinCut FindMinCut(const FlowNetwork& network) {
  for (const FlowNetwork::Edge& edge : network.edges) {
    const bool is_known = edge.from >= 0 && edge.from < network.nodes &&
                          edge.to >= 0 && edge.to < network.nodes;
    if (!is_known || edge.capacity < 0) {
      throw std::invalid_argument("min cut: an edge of no network");
    }
  }
  return PushRelabel(network).Run();
}

}  // namespace acplan::solver
