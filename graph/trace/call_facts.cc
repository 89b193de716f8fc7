#include "graph/trace/call_facts.h"

#include <algorithm>
#include <cstddef>
#include <ranges>

namespace acplan::graph {

CallForest MakeCallForest(const Trace& trace) {
  CallForest forest;
  forest.by_module.resize(trace.modules.size());
  forest.subtree_end.assign(trace.calls.size(), trace.calls.end_id());
  std::vector<CallId> open;
  for (const CallId c : trace.calls.ids()) {
    while (!open.empty() && open.back() != trace.calls[c].parent) {
      forest.subtree_end[open.back()] = c;
      forest.post_order.push_back(open.back());
      open.pop_back();
    }
    open.push_back(c);
  }
  forest.post_order.insert(forest.post_order.end(), open.rbegin(), open.rend());
  // The end of a module's outermost call so far.
  IndexedVector<ModuleId, CallId> outer_end(trace.modules.size());
  for (const CallId c : trace.calls.ids()) {
    const ModuleId m = trace.calls[c].module;
    forest.by_module[m].push_back(c);
    forest.is_outermost.push_back(c >= outer_end[m]);
    outer_end[m] = std::max(outer_end[m], forest.subtree_end[c]);
  }
  return forest;
}

CallSaves FindCallSaves(const Trace& trace) {
  const size_t count = trace.calls.size();
  CallSaves saves;
  saves.first_request.assign(count, kNever);
  saves.last_save.assign(count, 0);
  saves.is_asked_twice.assign(count, false);
  saves.is_recast.assign(count, false);
  saves.first_by_storage.assign(trace.storages.size(), kNone);
  const auto note = [&](CallId c, Time request, Time save) {
    if (c == kNone) return;
    saves.first_request[c] = std::min(saves.first_request[c], request);
    saves.last_save[c] = std::max(saves.last_save[c], save);
  };
  for (const SavedId i : std::views::reverse(trace.saved.ids())) {
    const SavedTensor& saved = trace.saved[i];
    saves.first_by_storage[saved.storage] = i;
    note(saved.call, saved.unpacked, saved.packed);
    if (saved.call != kNone && saved.unpacked_again) {
      saves.is_asked_twice[saved.call] = true;
    }
  }
  for (const CallId c : std::views::reverse(trace.calls.ids())) {
    const CallId parent = trace.calls[c].parent;
    note(parent, saves.first_request[c], saves.last_save[c]);
    if (parent != kNone && saves.is_asked_twice[c]) {
      saves.is_asked_twice[parent] = true;
    }
  }
  // A cast comes before each call around the operator, until one that made it.
  for (const OperatorId op : OperatorsIn(0, trace.forward_end)) {
    for (const OperatorId cast : trace.operators[op].recasts) {
      for (CallId c = trace.operators[op].call;
           c != kNone && StartOf(cast) < trace.calls[c].start;
           c = trace.calls[c].parent) {
        saves.is_recast[c] = true;
      }
    }
  }
  return saves;
}

InPlaceWrites FindInPlaceWrites(const Trace& trace) {
  InPlaceWrites writes;
  for (const OperatorId op : OperatorsIn(0, trace.backward_end)) {
    for (const StorageId s : trace.operators[op].mutates) {
      writes[s].writers.push_back(op);
    }
  }
  for (const OperatorId op : OperatorsIn(0, trace.forward_end)) {
    if (trace.operators[op].view) continue;
    for (const StorageId s : trace.operators[op].reads) {
      const auto accesses = writes.find(s);
      if (accesses != writes.end()) accesses->second.readers.push_back(op);
    }
  }
  return writes;
}

bool OnlyUpdates(const Trace& trace, const TraceCall& call, StorageId storage) {
  const auto is_it = [&](StorageId s) { return s == storage; };
  for (const OperatorId id : call.Operators()) {
    const TraceOperator& op = trace.operators[id];
    const bool writes = std::ranges::any_of(op.mutates, is_it);
    if (!writes && std::ranges::none_of(op.reads, is_it)) continue;
    const bool makes_only_it =
        (writes || op.view) && std::ranges::all_of(op.outputs, is_it);
    if (!makes_only_it) return false;
  }
  return true;
}

OperatorId FirstStaleWrite(const Trace& trace, const InPlaceWrites& writes,
                           const TraceCall& call, OperatorId op,
                           Time rerun_time) {
  OperatorId first = kNoOperator;
  if (trace.operators[op].view || writes.empty()) return first;
  for (const StorageId s : trace.operators[op].reads) {
    if (!trace.storages[s].IsOlderThan(call.start)) continue;
    const auto accesses = writes.find(s);
    if (accesses == writes.end()) continue;
    const std::vector<OperatorId>& writers = accesses->second.writers;
    const auto next = std::ranges::upper_bound(writers, op);
    const bool is_written =
        next != writers.end() && StartOf(*next) < rerun_time;
    if (is_written && !OnlyUpdates(trace, call, s)) {
      first = std::min(first, *next);
    }
  }
  return first;
}

}  // namespace acplan::graph
