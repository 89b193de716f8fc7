#include "graph/trace/call_facts.h"

#include <algorithm>
#include <cstddef>

namespace acplan::graph {

CallForest MakeCallForest(const Trace& trace) {
  const auto count = static_cast<int32_t>(trace.calls.size());
  CallForest forest;
  forest.by_module.resize(trace.modules.size());
  forest.subtree_end.assign(count, count);
  std::vector<int32_t> open;
  for (int32_t c = 0; c < count; ++c) {
    while (!open.empty() && open.back() != trace.calls[c].parent) {
      forest.subtree_end[open.back()] = c;
      forest.post_order.push_back(open.back());
      open.pop_back();
    }
    open.push_back(c);
  }
  forest.post_order.insert(forest.post_order.end(), open.rbegin(), open.rend());
  // A module: the end of its outermost call so far.
  std::vector<int32_t> outer_end(trace.modules.size(), 0);
  for (int32_t c = 0; c < count; ++c) {
    const int32_t m = trace.calls[c].module;
    forest.by_module[m].push_back(c);
    forest.is_outermost.push_back(c >= outer_end[m] ? 1 : 0);
    outer_end[m] = std::max(outer_end[m], forest.subtree_end[c]);
  }
  return forest;
}

CallSaves FindCallSaves(const Trace& trace) {
  const auto count = static_cast<int32_t>(trace.calls.size());
  CallSaves saves = {
      .first_request = std::vector<int32_t>(count, kNever),
      .last_save = std::vector<int32_t>(count, 0),
      .is_asked_twice = std::vector<char>(count, 0),
      .is_recast = std::vector<char>(count, 0),
      .first_by_storage = std::vector<int32_t>(trace.storages.size(), -1)};
  const auto note = [&](int32_t c, int32_t request, int32_t save) {
    if (c < 0) return;
    saves.first_request[c] = std::min(saves.first_request[c], request);
    saves.last_save[c] = std::max(saves.last_save[c], save);
  };
  for (size_t i = trace.saved.size(); i-- > 0;) {
    const SavedTensor& saved = trace.saved[i];
    saves.first_by_storage[saved.storage] = static_cast<int32_t>(i);
    note(saved.call, saved.unpacked, saved.packed);
    if (saved.call >= 0 && saved.unpacked_again) {
      saves.is_asked_twice[saved.call] = 1;
    }
  }
  for (int32_t c = count; c-- > 0;) {
    const int32_t parent = trace.calls[c].parent;
    note(parent, saves.first_request[c], saves.last_save[c]);
    if (parent >= 0 && saves.is_asked_twice[c]) {
      saves.is_asked_twice[parent] = 1;
    }
  }
  // A cast comes before each call around the operator, until one that made it.
  for (int32_t k = 0; k < trace.forward_end; ++k) {
    for (const int32_t cast : trace.operators[k].recasts) {
      for (int32_t c = trace.operators[k].call;
           c >= 0 && cast < trace.calls[c].start; c = trace.calls[c].parent) {
        saves.is_recast[c] = 1;
      }
    }
  }
  return saves;
}

InPlaceWrites FindInPlaceWrites(const Trace& trace) {
  InPlaceWrites writes;
  for (int32_t k = 0; k < trace.backward_end; ++k) {
    for (const int32_t s : trace.operators[k].mutates) {
      writes[s].writers.push_back(k);
    }
  }
  for (int32_t k = 0; k < trace.forward_end; ++k) {
    if (trace.operators[k].view) continue;
    for (const int32_t s : trace.operators[k].reads) {
      const auto found = writes.find(s);
      if (found != writes.end()) found->second.readers.push_back(k);
    }
  }
  return writes;
}

bool OnlyUpdates(const Trace& trace, const TraceCall& call, int32_t storage) {
  const auto is_it = [&](int32_t s) { return s == storage; };
  for (int32_t k = call.start; k < call.end; ++k) {
    const TraceOperator& op = trace.operators[k];
    const bool writes = std::ranges::any_of(op.mutates, is_it);
    if (!writes && std::ranges::none_of(op.reads, is_it)) continue;
    const bool makes_only_it =
        (writes || op.view) && std::ranges::all_of(op.outputs, is_it);
    if (!makes_only_it) return false;
  }
  return true;
}

int32_t FirstStaleWrite(const Trace& trace, const InPlaceWrites& writes,
                        const TraceCall& call, int32_t op, int32_t rerun_time) {
  int32_t first = kNever;
  if (trace.operators[op].view || writes.empty()) return first;
  for (const int32_t s : trace.operators[op].reads) {
    if (trace.storages[s].born >= call.start) continue;
    const auto found = writes.find(s);
    if (found == writes.end()) continue;
    const std::vector<int32_t>& writers = found->second.writers;
    const auto next = std::ranges::upper_bound(writers, op);
    const bool is_written = next != writers.end() && *next < rerun_time;
    if (is_written && !OnlyUpdates(trace, call, s)) {
      first = std::min(first, *next);
    }
  }
  return first;
}

}  // namespace acplan::graph
