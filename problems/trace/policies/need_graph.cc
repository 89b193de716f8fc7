#include "problems/trace/policies/need_graph.h"

#include <algorithm>
#include <functional>
#include <map>
#include <numeric>
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
  NeedWalk(const Trace& trace, const SavedByCall& saved_by_call, int32_t call,
           const graph::OperatorGroups& groups)
      : trace_(trace), call_(trace.calls[call]), groups_(groups) {
    for (const int32_t k : saved_by_call.From(call)) {
      const SavedTensor& saved = trace.saved[k];
      if (!IsInside(saved.call, call)) break;
      if (saved.unpacked == kNever || !IsOfCall(saved.storage)) continue;
      asked_at_[saved.packed].insert(saved.storage);
    }
  }

  NeedsOfStorages Run(int32_t stop) && {
    const int32_t end = std::min(stop, call_.end);
    auto asked = asked_at_.rbegin();
    for (int32_t op = end - 1; op >= call_.start; --op) {
      for (; asked != asked_at_.rend() && asked->first > op; ++asked) {
        pending_.insert(asked->second.begin(), asked->second.end());
        needed_.insert(asked->second.begin(), asked->second.end());
      }
      AddIfNeeded(op);
    }
    return std::move(needs_);
  }

 private:
  bool IsOfCall(int32_t storage) const {
    return trace_.storages[storage].born >= call_.start;
  }

  bool IsInside(int32_t inner, int32_t outer) const {
    while (inner > outer) inner = trace_.calls[inner].parent;
    return inner == outer;
  }

  void AddIfNeeded(int32_t op) {
    const TraceOperator& now = trace_.operators[op];
    const std::set<int32_t> made = MadeBy(now);
    const bool is_always = now.outputs.empty() && now.mutates.empty();
    const bool is_needed = std::ranges::any_of(
        made, [&](int32_t s) { return needed_.contains(s); });
    if (!is_always && !is_needed) return;
    NeedGraph::Operator node = {.place = op - call_.start,
                                .group = groups_.group_of[op - call_.start],
                                .ms = now.runtime_ms,
                                .is_always_needed = is_always};
    for (const int32_t s : pending_) node.asked.push_back(NumberOf(s));
    pending_.clear();
    for (const int32_t s : made) {
      if (needed_.contains(s)) node.makes.push_back(NumberOf(s));
    }
    for (const int32_t s : now.creates) needed_.erase(s);
    if (groups_.groups[node.group].rule != graph::GroupRule::kSave) {
      for (const int32_t s : ReadBy(op)) {
        needed_.insert(s);
        node.reads.push_back(NumberOf(s));
      }
    }
    needs_.graph.operators.push_back(std::move(node));
  }

  // What an operator makes anew, or writes to in place.
  std::set<int32_t> MadeBy(const TraceOperator& op) const {
    std::set<int32_t> made(op.creates.begin(), op.creates.end());
    for (const int32_t s : op.mutates) {
      if (IsOfCall(s)) made.insert(s);
    }
    return made;
  }

  // The results of others that an operator reads or writes to.
  std::set<int32_t> ReadBy(int32_t op) const {
    const TraceOperator& now = trace_.operators[op];
    std::set<int32_t> read(now.reads.begin(), now.reads.end());
    read.insert(now.mutates.begin(), now.mutates.end());
    std::erase_if(read, [&](int32_t s) {
      return !IsOfCall(s) || trace_.storages[s].born >= op;
    });
    return read;
  }

  int NumberOf(int32_t storage) {
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

size_t HashOf(const NeedGraph& graph) {
  size_t hash = static_cast<size_t>(graph.results);
  const auto add = [&](size_t value) {
    hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  };
  for (const NeedGraph::Operator& op : graph.operators) {
    add(static_cast<size_t>(op.place));
    add(static_cast<size_t>(op.group));
    add(std::hash<double>()(op.ms));
    for (const std::vector<int>* results : {&op.makes, &op.reads, &op.asked}) {
      add(results->size());
      for (const int r : *results) add(static_cast<size_t>(r));
    }
  }
  return hash;
}

SavedByCall::SavedByCall(const Trace& trace)
    : trace_(trace), by_call_(trace.saved.size()) {
  std::iota(by_call_.begin(), by_call_.end(), 0);
  std::ranges::stable_sort(by_call_, {},
                           [&](int32_t k) { return trace.saved[k].call; });
}

std::span<const int32_t> SavedByCall::From(int32_t call) const {
  const auto first = std::ranges::lower_bound(
      by_call_, call, {}, [&](int32_t k) { return trace_.saved[k].call; });
  return {first, by_call_.end()};
}

NeedsOfStorages NeedsOfCall(const Trace& trace, const SavedByCall& saved,
                            int32_t call, int32_t stop,
                            const graph::OperatorGroups& groups) {
  return NeedWalk(trace, saved, call, groups).Run(stop);
}

}  // namespace acplan::problems
