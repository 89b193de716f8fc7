#include "problems/check/remat_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>
#include <utility>

// First lists the runs in order: the buffers that backward makes again are
// determined from what it reads, at the moment it reads them. Then runs each
// pass with a count of the remaining uses of its buffers and a set of the live
// ones. Moves take a buffer out of this set, and put it in again.

namespace acplan::problems {
namespace {

using graph::JointGraph;
using graph::JointNode;
using graph::JointStage;

// The nodes that run in the two passes, in order.
class Order {
 public:
  Order(const JointGraph& graph, const std::vector<char>& is_kept)
      : maker(graph.buffers.size(), -1),
        returned(graph.forward_outputs.begin(), graph.forward_outputs.end()),
        graph_(graph),
        is_kept_(is_kept) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const int32_t b : graph.nodes[n].makes)
        maker[b] = static_cast<int>(n);
    ListBackward();
    ListForward();
    RequireAlike();
  }

  std::vector<int> maker;  // a buffer; -1: an input
  std::set<int> returned;  // by forward
  std::vector<int> forward;
  std::vector<int> backward;
  std::set<int> kept_buffers;    // buffers that are kept and needed
  std::set<int> repeated_nodes;  // nodes

 private:
  // Returns whether backward has a buffer without making it again.
  bool IsThere(int b) const {
    return maker[b] < 0 || returned.contains(b) ||
           graph_.nodes[maker[b]].stage == JointStage::kBackward;
  }

  void ListBackward() {
    for (int n = 0; n < std::ssize(graph_.nodes); ++n) {
      if (graph_.nodes[n].stage != JointStage::kBackward) continue;
      Prepare(graph_.nodes[n].reads);
      backward.push_back(n);
    }
    Prepare(graph_.backward_outputs);
  }

  // Lists the nodes that must run again before these buffers are read.
  void Prepare(const std::vector<int32_t>& reads) {
    std::set<int> batch;
    std::vector<int> open(reads.begin(), reads.end());
    while (!open.empty()) {
      const int b = open.back();
      open.pop_back();
      if (IsThere(b)) continue;
      if (is_kept_[b]) {
        kept_buffers.insert(b);
        continue;
      }
      const int n = maker[b];
      missed_.insert(b);
      if (!repeated_nodes.insert(n).second) continue;
      batch.insert(n);
      open.insert(open.end(), graph_.nodes[n].reads.begin(),
                  graph_.nodes[n].reads.end());
    }
    for (const int n : batch) {
      if (!graph_.nodes[n].may_run_again) {
        throw std::logic_error(
            fmt::format("'{}' may not run again", graph_.nodes[n].name));
      }
      backward.push_back(n);
    }
  }

  void ListForward() {
    std::set<int> early;
    std::vector<int> open(kept_buffers.begin(), kept_buffers.end());
    while (!open.empty()) {
      const int n = maker[open.back()];
      open.pop_back();
      if (n < 0 || graph_.nodes[n].stage != JointStage::kEither) continue;
      if (!early.insert(n).second) continue;
      open.insert(open.end(), graph_.nodes[n].reads.begin(),
                  graph_.nodes[n].reads.end());
    }
    for (int n = 0; n < std::ssize(graph_.nodes); ++n) {
      if (graph_.nodes[n].stage == JointStage::kForward || early.contains(n))
        forward.push_back(n);
    }
  }

  // Requires that a graph which runs twice keeps the same buffers both times.
  void RequireAlike() const {
    std::set<std::pair<int, size_t>> has_kept;
    std::set<std::pair<int, size_t>> has_missed;
    for (int n = 0; n < std::ssize(graph_.nodes); ++n) {
      const JointNode& node = graph_.nodes[n];
      const int first = node.tied_to.value_or(n);
      for (size_t i = 0; i < node.makes.size(); ++i) {
        if (kept_buffers.contains(node.makes[i])) has_kept.emplace(first, i);
        if (missed_.contains(node.makes[i])) has_missed.emplace(first, i);
      }
    }
    for (const auto& choice : has_kept) {
      if (!has_missed.contains(choice)) continue;
      throw std::logic_error(
          fmt::format("'{}' is kept in one run and not in another one",
                      graph_.nodes[choice.first].name));
    }
  }

  const JointGraph& graph_;
  const std::vector<char>& is_kept_;
  std::set<int> missed_;  // buffers that are needed and not there
};

// Runs the passes.
class Passes {
 public:
  Passes(const JointGraph& graph, const Order& order,
         const std::vector<graph::JointMove>& moves)
      : graph_(graph),
        order_(order),
        moves_(moves),
        place_(graph.buffers.size(), Place::kNowhere),
        uses_(graph.buffers.size(), 0),
        live_(graph.held_bytes),
        peak_(graph.held_bytes) {
    for (int b = 0; b < std::ssize(graph.buffers); ++b)
      if (order.maker[b] < 0 && !graph.buffers[b].is_from_backward) Hold(b);
  }

  int64_t Peak() {
    Execute(order_.forward, false);
    Execute(order_.backward, true);
    return peak_;
  }

 private:
  void CountUses(const std::vector<int>& nodes, bool is_backward) {
    std::ranges::fill(uses_, 0);
    for (const int n : nodes)
      for (const int b : graph_.nodes[n].reads) ++uses_[b];
    if (is_backward) {
      for (const int b : graph_.backward_outputs) ++uses_[b];
    } else {
      for (const int b : order_.kept_buffers) ++uses_[b];
    }
  }

  void Execute(const std::vector<int>& nodes, bool is_backward) {
    CountUses(nodes, is_backward);
    for (int b = 0; is_backward && b < std::ssize(graph_.buffers); ++b)
      if (graph_.buffers[b].is_from_backward && uses_[b] > 0) Hold(b);
    for (const int n : nodes) {
      Move();
      const JointNode& node = graph_.nodes[n];
      for (const int b : node.reads) RequireHere(b);
      int64_t now = node.scratch_bytes;
      for (const int b : node.makes) {
        if (place_[b] != Place::kNowhere) {
          now += graph_.buffers[b].bytes;  // a copy
        } else {
          Hold(b);
        }
      }
      peak_ = std::max(peak_, live_ + now);
      for (const int b : node.reads) --uses_[b];
      for (const int b : node.reads) LetGo(b);
      for (const int b : node.makes) LetGo(b);
    }
  }

  // Lets go of and takes back what moves before the next step.
  void Move() {
    for (const graph::JointMove& move : moves_) {
      if (move.release == step_) {
        RequireHere(move.buffer);
        place_[move.buffer] = Place::kHost;
        live_ -= graph_.buffers[move.buffer].bytes;
      }
      if (move.fetch == step_) Hold(move.buffer);
    }
    ++step_;
  }

  void RequireHere(int b) const {
    if (place_[b] == Place::kDevice) return;
    throw std::logic_error(
        fmt::format("'{}' is not on the device", graph_.buffers[b].name));
  }

  void Hold(int b) {
    place_[b] = Place::kDevice;
    live_ += graph_.buffers[b].bytes;
  }

  void LetGo(int b) {
    const bool is_input =
        order_.maker[b] < 0 && !graph_.buffers[b].is_from_backward;
    if (is_input || order_.returned.contains(b) || uses_[b] > 0 ||
        place_[b] != Place::kDevice)
      return;
    place_[b] = Place::kNowhere;
    live_ -= graph_.buffers[b].bytes;
  }

  const JointGraph& graph_;
  const Order& order_;
  const std::vector<graph::JointMove>& moves_;
  int32_t step_ = 0;  // of both passes
  enum class Place : char { kNowhere, kDevice, kHost };
  std::vector<Place> place_;   // by buffer
  std::vector<int64_t> uses_;  // by buffer: the remaining uses in the pass
  int64_t live_ = 0;
  int64_t peak_ = 0;
};

}  // namespace

RematEffect ComputeRematEffect(const JointGraph& graph,
                               const std::vector<char>& is_kept,
                               const std::vector<graph::JointMove>& moves) {
  const Order order(graph, is_kept);
  RematEffect effect{.peak_bytes = Passes(graph, order, moves).Peak()};
  for (const int b : order.kept_buffers) {
    effect.kept_bytes += graph.buffers[b].bytes;
    if (!graph.buffers[b].may_keep) {
      throw std::logic_error(
          fmt::format("'{}' may not be kept", graph.buffers[b].name));
    }
  }
  for (const int n : order.forward)
    if (order.repeated_nodes.contains(n))
      effect.recompute_ms += graph.nodes[n].ms;
  return effect;
}

void CheckRemat(const JointGraph& graph, int64_t budget_bytes,
                const graph::JointRun& run) {
  const RematEffect effect = ComputeRematEffect(graph, run.is_kept, run.moves);
  if (effect.peak_bytes != run.peak_bytes ||
      effect.kept_bytes != run.kept_bytes) {
    throw std::logic_error(fmt::format(
        "the plan fails its check: it needs {} bytes and keeps {}, not {} and "
        "{}",
        effect.peak_bytes, effect.kept_bytes, run.peak_bytes, run.kept_bytes));
  }
  if (effect.peak_bytes > budget_bytes) {
    throw std::logic_error(
        fmt::format("the plan fails its check: it needs {} bytes, more than {}",
                    effect.peak_bytes, budget_bytes));
  }
  const double most = 1e-9 * std::max(1.0, effect.recompute_ms);
  if (std::abs(effect.recompute_ms - run.recompute_ms) > most) {
    throw std::logic_error(
        fmt::format("the plan fails its check: it recomputes {} ms, not {}",
                    effect.recompute_ms, run.recompute_ms));
  }
}

}  // namespace acplan::problems
