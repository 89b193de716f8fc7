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
  explicit WalkNodes(const CandidateList& candidates)
      : children_(candidates.size()) {
    std::vector<CandidateId> roots;
    for (const CandidateId c : candidates.ids()) {
      const CandidateId parent = candidates[c].parent;
      (parent == graph::kNone ? roots : children_[parent]).push_back(c);
    }
    walk_.node_of.resize(candidates.size());
    AddCalls(roots);
    AddNode(graph::kNone);
  }

  CallWalk Take() { return std::move(walk_); }

 private:
  WalkNodeId AddNode(CandidateId candidate) {
    Node& node = walk_.forest.nodes.emplace_back();
    if (candidate == graph::kNone) node.time = next_time_++;
    return walk_.candidate_at.Add(candidate);
  }

  void AddCalls(const std::vector<CandidateId>& siblings) {
    std::vector<Node>& nodes = walk_.forest.nodes;
    for (const CandidateId c : siblings) {
      AddNode(graph::kNone);
      const WalkNodeId id = AddNode(c);
      walk_.node_of[c] = id;
      AddCalls(children_[c]);
      Node& node = nodes[IndexOf(id)];
      node.subtree_size = static_cast<int>(nodes.size()) - IndexOf(id);
      node.time = next_time_++;
    }
  }

  graph::IndexedVector<CandidateId, std::vector<CandidateId>> children_;
  int next_time_ = 0;
  CallWalk walk_;
};

// Tells in which record of the walk each time is.
class TimePlacement {
 public:
  TimePlacement(const Trace& trace, const CandidateList& candidates,
                const CallWalk& walk)
      : trace_(trace), candidates_(candidates), walk_(walk) {}

  std::vector<WalkNodeId> RecordOfTimes() const {
    std::vector<WalkNodeId> record_of = RecordsInForward();
    record_of.resize(trace_.operators.size());
    PlaceBackward(record_of);
    return record_of;
  }

 private:
  // Places a time of the forward pass inside the innermost candidate that runs, after
  // what has ended in it.
  std::vector<WalkNodeId> RecordsInForward() const {
    std::vector<WalkNodeId> record_of;
    CandidateId innermost = graph::kNone;
    WalkNodeId record{0};
    CandidateId next{0};
    for (graph::Time t = 0; t < trace_.forward_end; ++t) {
      for (;;) {
        if (innermost != graph::kNone && CallOf(innermost).end <= t) {
          record = RecordAfter(innermost);
          innermost = candidates_[innermost].parent;
        } else if (next < candidates_.end_id() && CallOf(next).start <= t) {
          innermost = std::exchange(next, Next(next));
          record = FirstRecordIn(innermost);
        } else {
          break;
        }
      }
      record_of.push_back(record);
    }
    return record_of;
  }

  // Later, units are released until they run again.
  void PlaceBackward(std::vector<WalkNodeId>& record_of) const {
    const graph::IdRange<CandidateId> all = candidates_.ids();
    std::vector<CandidateId> by_request(all.begin(), all.end());
    // A call that never runs again has let go of all at the end of its frame.
    const auto request = [&](CandidateId c) {
      return std::min(candidates_[c].first_request, candidates_[c].frame_end);
    };
    std::ranges::sort(by_request, std::greater<>(), request);
    WalkNodeId last{0};
    auto next = by_request.begin();
    for (auto t = static_cast<graph::Time>(record_of.size()) - 1;
         t >= trace_.forward_end; --t) {
      for (; next != by_request.end() && request(*next) > t; ++next) {
        const WalkNodeId record = RecordAfter(*next);
        if (TimeOf(record) > TimeOf(last)) last = record;
      }
      record_of[t] = InsideRunning(last, t);
    }
  }

  int TimeOf(WalkNodeId node) const {
    return walk_.forest.nodes[IndexOf(node)].time;
  }

  const graph::TraceCall& CallOf(CandidateId c) const {
    return trace_.calls[candidates_[c].call];
  }

  WalkNodeId FirstRecordIn(CandidateId c) const {
    const WalkNodeId node = walk_.node_of[c];
    return candidates_[c].is_innermost ? node : Next(node);
  }

  // Returns the record that follows a candidate: after the last call inside of another
  // one, that one's.
  WalkNodeId RecordAfter(CandidateId c) const {
    const auto next_of = [&](CandidateId d) {
      return EndOfSubtree(walk_.forest, walk_.node_of[d]);
    };
    const CandidateId parent = candidates_[c].parent;
    return parent != graph::kNone && next_of(c) == next_of(parent)
               ? walk_.node_of[parent]
               : next_of(c);
  }

  // A time just before a candidate that runs again then is one inside of it.
  WalkNodeId InsideRunning(WalkNodeId record, graph::Time t) const {
    const auto is_call = [&](WalkNodeId node) {
      return node < walk_.candidate_at.end_id() &&
             walk_.candidate_at[node] != graph::kNone;
    };
    // Leaves stand before calls.
    while (!is_call(record) && is_call(Next(record))) {
      const CandidateId c = walk_.candidate_at[Next(record)];
      if (candidates_[c].first_request > t || candidates_[c].frame_end <= t) {
        break;
      }
      record = FirstRecordIn(c);
    }
    return record;
  }

  const Trace& trace_;
  const CandidateList& candidates_;
  const CallWalk& walk_;
};

}  // namespace

CallWalk WalkOverCalls(const Trace& trace, const CandidateList& candidates) {
  CallWalk walk = WalkNodes(candidates).Take();
  walk.record_of = TimePlacement(trace, candidates, walk).RecordOfTimes();
  return walk;
}

}  // namespace acplan::problems
