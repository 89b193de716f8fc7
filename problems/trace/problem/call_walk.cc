#include "problems/trace/problem/call_walk.h"

#include <algorithm>
#include <cstddef>
#include <functional>
#include <utility>

namespace acplan::problems {

using graph::Trace;

namespace {

using Node = ModuleProblem::Node;

class WalkNodes {
 public:
  explicit WalkNodes(const std::vector<CandidateCall>& candidates)
      : children_(candidates.size()) {
    std::vector<int> roots;
    for (size_t c = 0; c < candidates.size(); ++c) {
      const int parent = candidates[c].parent;
      (parent < 0 ? roots : children_[parent]).push_back(static_cast<int>(c));
    }
    walk_.node_of.resize(candidates.size());
    AddCalls(roots);
    AddNode(-1);
  }

  CallWalk Take() { return std::move(walk_); }

 private:
  int AddNode(int candidate) {
    const auto node = static_cast<int>(walk_.forest.nodes.size());
    walk_.forest.nodes.push_back({});
    walk_.candidate_at.push_back(candidate);
    if (candidate < 0) walk_.forest.nodes[node].time = next_time_++;
    return node;
  }

  void AddCalls(const std::vector<int>& siblings) {
    std::vector<Node>& nodes = walk_.forest.nodes;
    for (const int c : siblings) {
      AddNode(-1);
      const int node = AddNode(c);
      walk_.node_of[c] = node;
      AddCalls(children_[c]);
      nodes[node].subtree_size = static_cast<int>(nodes.size()) - node;
      nodes[node].time = next_time_++;
    }
  }

  std::vector<std::vector<int>> children_;  // a candidate
  int next_time_ = 0;
  CallWalk walk_;
};

// Tells in which record of the walk each time is.
class TimePlacement {
 public:
  TimePlacement(const Trace& trace,
                const std::vector<CandidateCall>& candidates,
                const CallWalk& walk)
      : trace_(trace), candidates_(candidates), walk_(walk) {}

  std::vector<int> RecordOfTimes() const {
    std::vector<int> record_of = RecordsInForward();
    record_of.resize(trace_.operators.size());
    PlaceBackward(record_of);
    return record_of;
  }

 private:
  // Places a time of the forward pass inside the innermost candidate that runs, after
  // what has ended in it.
  std::vector<int> RecordsInForward() const {
    std::vector<int> record_of;
    int inside = -1;
    int record = 0;
    int next = 0;
    for (graph::Time t = 0; t < trace_.forward_end; ++t) {
      for (;;) {
        if (inside >= 0 && CallOf(inside).end <= t) {
          record = RecordAfter(inside);
          inside = candidates_[inside].parent;
        } else if (next < std::ssize(candidates_) && CallOf(next).start <= t) {
          inside = next++;
          record = FirstRecordIn(inside);
        } else {
          break;
        }
      }
      record_of.push_back(record);
    }
    return record_of;
  }

  // Later, units are released until they run again.
  void PlaceBackward(std::vector<int>& record_of) const {
    const std::vector<Node>& nodes = walk_.forest.nodes;
    std::vector<int> by_request(candidates_.size());
    for (size_t c = 0; c < by_request.size(); ++c) {
      by_request[c] = static_cast<int>(c);
    }
    // A call that never runs again has let go of all at the end of its frame.
    const auto request = [&](int c) {
      return std::min(candidates_[c].first_request, candidates_[c].frame_end);
    };
    std::ranges::sort(by_request, std::greater<>(), request);
    int last = 0;
    auto next = by_request.begin();
    for (auto t = static_cast<graph::Time>(record_of.size()) - 1;
         t >= trace_.forward_end; --t) {
      for (; next != by_request.end() && request(*next) > t; ++next) {
        const int record = RecordAfter(*next);
        if (nodes[record].time > nodes[last].time) last = record;
      }
      record_of[t] = InsideRunning(last, t);
    }
  }

  const graph::TraceCall& CallOf(int c) const {
    return trace_.calls[candidates_[c].call];
  }

  int FirstRecordIn(int c) const {
    const int node = walk_.node_of[c];
    return candidates_[c].is_innermost ? node : node + 1;
  }

  // The record that follows a candidate: after the last call inside of another
  // one, that one's.
  int RecordAfter(int c) const {
    const auto next_of = [&](int d) {
      const int node = walk_.node_of[d];
      return node + walk_.forest.nodes[node].subtree_size;
    };
    const int parent = candidates_[c].parent;
    return parent >= 0 && next_of(c) == next_of(parent) ? walk_.node_of[parent]
                                                        : next_of(c);
  }

  // A time just before a candidate that runs again then is one inside of it.
  int InsideRunning(int record, graph::Time t) const {
    const auto is_call = [&](int node) {
      return node < std::ssize(walk_.candidate_at) &&
             walk_.candidate_at[node] >= 0;
    };
    // Leaves stand before calls.
    while (!is_call(record) && is_call(record + 1)) {
      const int c = walk_.candidate_at[record + 1];
      if (candidates_[c].first_request > t || candidates_[c].frame_end <= t) {
        break;
      }
      record = FirstRecordIn(c);
    }
    return record;
  }

  const Trace& trace_;
  const std::vector<CandidateCall>& candidates_;
  const CallWalk& walk_;
};

}  // namespace

CallWalk WalkOverCalls(const Trace& trace,
                       const std::vector<CandidateCall>& candidates) {
  CallWalk walk = WalkNodes(candidates).Take();
  walk.record_of = TimePlacement(trace, candidates, walk).RecordOfTimes();
  return walk;
}

}  // namespace acplan::problems
