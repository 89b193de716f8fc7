#include "problems/check/remat_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <stdexcept>

// First what runs, in order: what backward makes again is found from what it reads, as it
// reads it. Then each pass is run with a count of the uses that its buffers have left, and
// a set of those that are live.

namespace acplan::problems {
namespace {

using graph::JointGraph;
using graph::JointNode;
using graph::JointStage;

class Passes {
 public:
  Passes(const JointGraph& graph, const std::vector<char>& kept)
      : graph_(graph),
        kept_(kept),
        maker_(graph.buffers.size(), -1),
        is_live_(graph.buffers.size(), 0),
        uses_(graph.buffers.size(), 0) {
    for (size_t n = 0; n < graph.nodes.size(); ++n)
      for (const int32_t b : graph.nodes[n].makes)
        maker_[b] = static_cast<int>(n);
    returned_.insert(graph.forward_outputs.begin(),
                     graph.forward_outputs.end());
    gradients_.insert(graph.backward_outputs.begin(),
                      graph.backward_outputs.end());
  }

  RematEffect Run() {
    ListBackward();
    ListForward();
    live_ = graph_.held_bytes;
    for (int b = 0; b < std::ssize(graph_.buffers); ++b)
      if (maker_[b] < 0 && !graph_.buffers[b].is_from_backward) Hold(b);
    effect_.peak_bytes = graph_.held_bytes;
    Execute(forward_, false);
    Execute(backward_, true);
    return effect_;
  }

 private:
  // Backward has it without making it.
  bool IsThere(int b) const {
    return maker_[b] < 0 || returned_.contains(b) ||
           graph_.nodes[maker_[b]].stage == JointStage::kBackward;
  }

  void ListBackward() {
    for (int n = 0; n < std::ssize(graph_.nodes); ++n) {
      if (graph_.nodes[n].stage != JointStage::kBackward) continue;
      Prepare(graph_.nodes[n].reads);
      backward_.push_back(n);
    }
    Prepare(graph_.backward_outputs);
  }

  // Lists what has to run again before these are read.
  void Prepare(const std::vector<int32_t>& reads) {
    std::set<int> batch;
    std::vector<int> open(reads.begin(), reads.end());
    while (!open.empty()) {
      const int b = open.back();
      open.pop_back();
      if (IsThere(b)) continue;
      if (kept_[b]) {
        used_.insert(b);
        continue;
      }
      const int n = maker_[b];
      if (!again_.insert(n).second) continue;
      batch.insert(n);
      open.insert(open.end(), graph_.nodes[n].reads.begin(),
                  graph_.nodes[n].reads.end());
    }
    for (const int n : batch) {
      if (!graph_.nodes[n].may_run_again) {
        throw std::logic_error(
            fmt::format("'{}' may not run again", graph_.nodes[n].name));
      }
      backward_.push_back(n);
    }
  }

  void ListForward() {
    std::set<int> early;
    std::vector<int> open(used_.begin(), used_.end());
    for (const int b : used_) {
      effect_.kept_bytes += graph_.buffers[b].bytes;
      if (!graph_.buffers[b].may_keep) {
        throw std::logic_error(
            fmt::format("'{}' may not be kept", graph_.buffers[b].name));
      }
    }
    while (!open.empty()) {
      const int n = maker_[open.back()];
      open.pop_back();
      if (n < 0 || graph_.nodes[n].stage != JointStage::kEither) continue;
      if (!early.insert(n).second) continue;
      open.insert(open.end(), graph_.nodes[n].reads.begin(),
                  graph_.nodes[n].reads.end());
    }
    for (int n = 0; n < std::ssize(graph_.nodes); ++n) {
      if (graph_.nodes[n].stage == JointStage::kForward || early.contains(n)) {
        forward_.push_back(n);
        if (again_.contains(n)) effect_.recompute_ms += graph_.nodes[n].ms;
      }
    }
  }

  void Execute(const std::vector<int>& nodes, bool is_backward) {
    std::ranges::fill(uses_, 0);
    for (const int n : nodes)
      for (const int b : graph_.nodes[n].reads) ++uses_[b];
    if (is_backward) {
      for (const int b : gradients_) ++uses_[b];
      for (int b = 0; b < std::ssize(graph_.buffers); ++b)
        if (graph_.buffers[b].is_from_backward && uses_[b] > 0) Hold(b);
    } else {
      for (const int b : used_) ++uses_[b];
    }
    for (const int n : nodes) {
      const JointNode& node = graph_.nodes[n];
      int64_t now = node.scratch_bytes;
      for (const int b : node.makes) {
        if (is_live_[b]) {
          now += graph_.buffers[b].bytes;  // a copy
        } else {
          Hold(b);
        }
      }
      effect_.peak_bytes = std::max(effect_.peak_bytes, live_ + now);
      for (const int b : node.reads) --uses_[b];
      for (const int b : node.reads) LetGo(b);
      for (const int b : node.makes) LetGo(b);
    }
  }

  void Hold(int b) {
    is_live_[b] = 1;
    live_ += graph_.buffers[b].bytes;
  }

  void LetGo(int b) {
    const bool is_input = maker_[b] < 0 && !graph_.buffers[b].is_from_backward;
    if (is_input || returned_.contains(b) || uses_[b] > 0 || !is_live_[b])
      return;
    is_live_[b] = 0;
    live_ -= graph_.buffers[b].bytes;
  }

  const JointGraph& graph_;
  const std::vector<char>& kept_;
  std::vector<int> maker_;
  std::set<int> returned_;   // buffers
  std::set<int> gradients_;  // buffers
  std::set<int> used_;       // buffers that are kept and needed
  std::set<int> again_;      // nodes
  std::vector<int> forward_;
  std::vector<int> backward_;
  std::vector<char> is_live_;
  std::vector<int64_t> uses_;  // a buffer: that the pass has left
  int64_t live_ = 0;
  RematEffect effect_;
};

}  // namespace

RematEffect ComputeRematEffect(const JointGraph& graph,
                               const std::vector<char>& kept) {
  return Passes(graph, kept).Run();
}

void CheckRemat(const JointGraph& graph, int64_t budget_bytes,
                const graph::JointRun& run) {
  const RematEffect effect = ComputeRematEffect(graph, run.kept);
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
        fmt::format("the plan fails its check: it runs {} ms again, not {}",
                    effect.recompute_ms, run.recompute_ms));
  }
}

}  // namespace acplan::problems
