#include "problems/trace/policies/need_graph.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace acplan::problems {

using graph::kNever;
using graph::SavedTensor;
using graph::Trace;
using graph::TraceCall;
using graph::TraceOperator;

namespace {

// Walks a call's operators from the last to the first, with the storages that
// are asked for by then if everything that is needed runs again.
class NeedWalk {
 public:
  NeedWalk(const Trace& trace, graph::CallId call,
           const graph::OperatorGroups& groups)
      : trace_(trace), call_(trace.calls[call]), groups_(groups) {
    for (const SavedTensor& saved : trace.saved) {
      if (saved.unpacked == kNever || !IsOfCall(saved.storage) ||
          !IsInside(saved.call, call)) {
        continue;
      }
      asked_at_[saved.packed].insert(saved.storage);
    }
  }

  NeedsOfStorages Run(graph::Time stop) && {
    const graph::Time end = std::min(stop, call_.end);
    auto asked = asked_at_.rbegin();
    for (graph::OperatorId op = end - 1; op >= call_.start; --op) {
      for (; asked != asked_at_.rend() && asked->first > op; ++asked) {
        pending_.insert(asked->second.begin(), asked->second.end());
        needed_.insert(asked->second.begin(), asked->second.end());
      }
      AddIfNeeded(op);
    }
    return std::move(needs_);
  }

 private:
  bool IsOfCall(graph::StorageId storage) const {
    return trace_.storages[storage].born >= call_.start;
  }

  bool IsInside(graph::FrameId inner, graph::FrameId outer) const {
    while (inner > outer) inner = trace_.calls[inner].parent;
    return inner == outer;
  }

  void AddIfNeeded(graph::OperatorId op) {
    const TraceOperator& now = trace_.operators[op];
    const std::set<int32_t> made = MadeBy(now);
    const bool is_always = now.outputs.empty() && now.mutates.empty();
    const bool is_needed = std::ranges::any_of(
        made, [&](graph::StorageId s) { return needed_.contains(s); });
    if (!is_always && !is_needed) return;
    NeedGraph::Operator node = {.place = op - call_.start,
                                .group = groups_.group_of[op - call_.start],
                                .ms = now.runtime_ms,
                                .is_always_needed = is_always};
    for (const graph::StorageId s : pending_) node.asked.push_back(NumberOf(s));
    pending_.clear();
    for (const graph::StorageId s : made) {
      if (needed_.contains(s)) node.makes.push_back(NumberOf(s));
    }
    for (const graph::StorageId s : now.creates) needed_.erase(s);
    if (groups_.groups[node.group].rule != graph::GroupRule::kSave) {
      for (const graph::StorageId s : ReadBy(op)) {
        needed_.insert(s);
        node.reads.push_back(NumberOf(s));
      }
    }
    needs_.graph.operators.push_back(std::move(node));
  }

  // What an operator makes anew, or writes to in place.
  std::set<int32_t> MadeBy(const TraceOperator& op) const {
    std::set<int32_t> made(op.creates.begin(), op.creates.end());
    for (const graph::StorageId s : op.mutates) {
      if (IsOfCall(s)) made.insert(s);
    }
    return made;
  }

  // The results of others that an operator reads or writes to.
  std::set<int32_t> ReadBy(graph::OperatorId op) const {
    const TraceOperator& now = trace_.operators[op];
    std::set<int32_t> read(now.reads.begin(), now.reads.end());
    read.insert(now.mutates.begin(), now.mutates.end());
    std::erase_if(read, [&](graph::StorageId s) {
      return !IsOfCall(s) || trace_.storages[s].born >= op;
    });
    return read;
  }

  int NumberOf(graph::StorageId storage) {
    const auto [found, is_new] =
        number_of_.try_emplace(storage, needs_.graph.results);
    if (is_new) {
      ++needs_.graph.results;
      needs_.storages.push_back(storage);
    }
    return found->second;
  }

  const Trace& trace_;
  const TraceCall& call_;
  const graph::OperatorGroups& groups_;
  std::map<int32_t, std::set<int32_t>> asked_at_;  // a time
  std::set<int32_t> needed_, pending_;
  std::map<int32_t, int> number_of_;
  NeedsOfStorages needs_;
};

}  // namespace

NeedsOfStorages NeedsOfCall(const Trace& trace, graph::CallId call, graph::Time stop,
                            const graph::OperatorGroups& groups) {
  return NeedWalk(trace, call, groups).Run(stop);
}

}  // namespace acplan::problems
