#include "problems/trace/policies/need_graph.h"

#include <algorithm>
#include <functional>
#include <map>
#include <ranges>
#include <set>
#include <utility>

namespace acplan::problems {

using graph::kNever;
using graph::OperatorId;
using graph::SavedTensor;
using graph::StorageId;
using graph::Trace;
using graph::TraceCall;
using graph::TraceOperator;

namespace {

// Walks a call's operators from the last to the first, with the storages that
// are asked for by then if everything that is needed runs again.
class NeedWalk {
 public:
  NeedWalk(const Trace& trace, const SavedByCall& saved_by_call,
           graph::CallId call, const graph::OperatorGroups& groups)
      : trace_(trace), call_(trace.calls[call]), groups_(groups) {
    for (const graph::SavedId k : saved_by_call.From(call)) {
      const SavedTensor& saved = trace.saved[k];
      if (!IsInside(saved.call, call)) break;
      if (saved.unpacked == kNever || !IsOfCall(saved.storage)) continue;
      requests_[saved.packed].insert(saved.storage);
    }
  }

  NeedsOfStorages Run(graph::Time stop) && {
    const graph::Time end = std::min(stop, call_.end);
    auto request = requests_.rbegin();
    for (const OperatorId op :
         std::views::reverse(graph::OperatorsIn(call_.start, end))) {
      for (; request != requests_.rend() && request->first > StartOf(op);
           ++request) {
        pending_.insert(request->second.begin(), request->second.end());
        needed_storages_.insert(request->second.begin(), request->second.end());
      }
      AddIfNeeded(op);
    }
    return std::move(needs_);
  }

 private:
  bool IsOfCall(StorageId storage) const {
    return !trace_.storages[storage].IsOlderThan(call_.start);
  }

  bool IsInside(graph::CallId inner, graph::CallId outer) const {
    while (inner > outer) inner = trace_.calls[inner].parent;
    return inner == outer;
  }

  void AddIfNeeded(OperatorId op) {
    const TraceOperator& now = trace_.operators[op];
    const std::set<StorageId> changes = ChangesOf(now);
    const bool is_always = now.outputs.empty() && now.mutates.empty();
    const bool is_needed = std::ranges::any_of(
        changes, [&](StorageId s) { return needed_storages_.contains(s); });
    if (!is_always && !is_needed) return;
    NeedGraph::Operator node = {.place = call_.PlaceOf(op),
                                .group = groups_.group_of[call_.PlaceOf(op)],
                                .ms = now.runtime_ms,
                                .is_always_needed = is_always};
    for (const StorageId s : pending_) node.requests.push_back(ResultOf(s));
    pending_.clear();
    for (const StorageId s : changes) {
      if (needed_storages_.contains(s)) node.makes.push_back(ResultOf(s));
    }
    for (const StorageId s : now.creates) needed_storages_.erase(s);
    if (groups_.groups[node.group].rule != graph::GroupRule::kSave) {
      for (const StorageId s : ReadBy(op)) {
        needed_storages_.insert(s);
        node.reads.push_back(ResultOf(s));
      }
    }
    needs_.graph.operators.push_back(std::move(node));
  }

  // Returns the storages that an operator makes anew, or writes to in place.
  std::set<StorageId> ChangesOf(const TraceOperator& op) const {
    std::set<StorageId> changes(op.creates.begin(), op.creates.end());
    for (const StorageId s : op.mutates) {
      if (IsOfCall(s)) changes.insert(s);
    }
    return changes;
  }

  // The results of others that an operator reads or writes to.
  std::set<StorageId> ReadBy(OperatorId op) const {
    const TraceOperator& now = trace_.operators[op];
    std::set<StorageId> read(now.reads.begin(), now.reads.end());
    read.insert(now.mutates.begin(), now.mutates.end());
    std::erase_if(read, [&](StorageId s) {
      return !IsOfCall(s) || trace_.storages[s].born >= op;
    });
    return read;
  }

  ResultId ResultOf(StorageId storage) {
    const auto [result, is_new] =
        result_of_.try_emplace(storage, needs_.storages.end_id());
    if (is_new) {
      ++needs_.graph.results;
      needs_.storages.push_back(storage);
    }
    return result->second;
  }

  const Trace& trace_;
  const TraceCall& call_;
  const graph::OperatorGroups& groups_;
  std::map<graph::Time, std::set<StorageId>> requests_;
  std::set<StorageId> needed_storages_, pending_;
  std::map<StorageId, ResultId> result_of_;
  NeedsOfStorages needs_;
};

}  // namespace

size_t HashOf(const NeedGraph& graph) {
  auto hash = static_cast<size_t>(graph.results);
  const auto add = [&](size_t value) {
    hash ^= value + 0x9e3779b97f4a7c15 + (hash << 6) + (hash >> 2);
  };
  for (const NeedGraph::Operator& op : graph.operators) {
    add(static_cast<size_t>(op.place));
    add(static_cast<size_t>(op.group));
    add(std::hash<double>()(op.ms));
    for (const std::vector<ResultId>* results :
         {&op.makes, &op.reads, &op.requests}) {
      add(results->size());
      for (const ResultId r : *results) add(static_cast<size_t>(r));
    }
  }
  return hash;
}

SavedByCall::SavedByCall(const Trace& trace) : trace_(trace) {
  for (const graph::SavedId k : trace.saved.ids()) by_call_.push_back(k);
  std::ranges::stable_sort(
      by_call_, {}, [&](graph::SavedId k) { return trace.saved[k].call; });
}

std::span<const graph::SavedId> SavedByCall::From(graph::CallId call) const {
  const auto first = std::ranges::lower_bound(
      by_call_, call, {},
      [&](graph::SavedId k) { return trace_.saved[k].call; });
  return {first, by_call_.end()};
}

NeedsOfStorages NeedsOfCall(const Trace& trace, const SavedByCall& saved,
                            graph::CallId call, graph::Time stop,
                            const graph::OperatorGroups& groups) {
  return NeedWalk(trace, saved, call, groups).Run(stop);
}

}  // namespace acplan::problems
