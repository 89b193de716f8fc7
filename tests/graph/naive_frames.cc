#include "tests/graph/naive_frames.h"

#include <algorithm>
#include <cstddef>

namespace acplan::graph {

OperatorDecision DecisionOf(const Trace& trace, const NaiveFrame& frame,
                            OperatorId op) {
  if (frame.unit->decisions.empty()) return OperatorDecision::kRecompute;
  return frame.unit->decisions[trace.calls[frame.call].PlaceOf(op)];
}

bool IsSaved(const Trace& trace, const NaiveFrame& frame, OperatorId op) {
  const OperatorDecision decision = DecisionOf(trace, frame, op);
  return decision == OperatorDecision::kSave ||
         decision == OperatorDecision::kOffload;
}

std::set<StorageId> KeptStorages(const Trace& trace, const NaiveFrame& frame,
                                 OperatorId op) {
  const TraceOperator& now = trace.operators[op];
  const auto results =
      frame.unit->kept_results.find(trace.calls[frame.call].PlaceOf(op));
  if (results == frame.unit->kept_results.end()) {
    return {now.outputs.begin(), now.outputs.end()};
  }
  std::set<StorageId> storages;
  for (const int32_t r : results->second) {
    storages.insert(trace.tensors[now.results[r]].storage);
  }
  return storages;
}

bool IsTensorKept(const Trace& trace, const NaiveFrame& frame,
                  TensorId tensor) {
  const OperatorId op = trace.tensors[tensor].op;
  const auto results =
      frame.unit->kept_results.find(trace.calls[frame.call].PlaceOf(op));
  if (results == frame.unit->kept_results.end()) return true;
  return std::ranges::any_of(results->second, [&](int32_t r) {
    return trace.operators[op].results[r] == tensor;
  });
}

namespace {

// Returns the storages that move, first the arguments, the others by operator and then
// by result.
std::vector<std::pair<OperatorId, StorageId>> MovedOf(const Trace& trace,
                                                      const NaiveFrame& frame) {
  std::vector<std::pair<OperatorId, StorageId>> moved_storages;
  std::set<StorageId> seen_storages;
  const TraceCall& call = trace.calls[frame.call];
  for (const int32_t place : frame.unit->offloaded_arguments) {
    const auto arguments = static_cast<int32_t>(call.arguments.size());
    const StorageId s = place < arguments
                            ? trace.tensors[call.arguments[place]].storage
                            : call.further_inputs[place - arguments];
    if (seen_storages.insert(s).second) moved_storages.emplace_back(kNone, s);
  }
  for (const OperatorId op : call.Operators()) {
    if (DecisionOf(trace, frame, op) != OperatorDecision::kOffload) continue;
    const std::set<StorageId> kept_storages = KeptStorages(trace, frame, op);
    std::vector<StorageId> order;
    for (const TensorId t : trace.operators[op].results) {
      order.push_back(trace.tensors[t].storage);
    }
    order.insert(order.end(), kept_storages.begin(), kept_storages.end());
    for (const StorageId s : order) {
      if (kept_storages.contains(s) && seen_storages.insert(s).second)
        moved_storages.emplace_back(op, s);
    }
  }
  return moved_storages;
}

int InnermostFrame(const Trace& trace, const std::vector<NaiveFrame>& frames,
                   CallId call) {
  for (; call != kNone; call = trace.calls[call].parent) {
    for (size_t f = 0; f < frames.size(); ++f) {
      if (frames[f].call == call) return static_cast<int>(f);
    }
  }
  return -1;
}

}  // namespace

std::vector<NaiveFrame> FramesOf(
    const Trace& trace, const std::vector<CheckpointedModule>& modules) {
  std::vector<NaiveFrame> frames;
  for (const CallId c : trace.calls.ids()) {
    const TraceCall& call = trace.calls[c];
    const auto unit =
        std::ranges::find(modules, call.module, &CheckpointedModule::module);
    if (unit == modules.end() || call.no_grad) continue;
    frames.push_back({.call = c,
                      .unit = &*unit,
                      .parent = InnermostFrame(trace, frames, call.parent),
                      .released = call.end});
  }
  for (const SavedTensor& saved : trace.saved) {
    const int outer = InnermostFrame(trace, frames, saved.call);
    if (outer < 0) continue;
    NaiveFrame& frame = frames[outer];
    frame.saved.push_back(saved);
    frame.asked_at = std::min(frame.asked_at, saved.unpacked);
    frame.stop = std::max(frame.stop, saved.packed);
    frame.released = std::max(frame.released, saved.released);
  }
  for (size_t f = frames.size(); f-- > 0;) {
    NaiveFrame& frame = frames[f];
    frame.moved_storages = MovedOf(trace, frame);
    if (!IsSavedAround(trace, frame)) continue;
    NaiveFrame& outer = frames[frame.parent];
    outer.asked_at = std::min(outer.asked_at, frame.asked_at);
    outer.stop = std::max(outer.stop, trace.calls[frame.call].start);
    outer.released = std::max(outer.released, frame.released);
  }
  return frames;
}

bool IsSavedAround(const Trace& trace, const NaiveFrame& frame) {
  return frame.parent >= 0 && !trace.calls[frame.call].arguments.empty();
}

std::vector<NaiveRecast> NaiveRecastsOf(const Trace& trace,
                                        const NaiveFrame& frame) {
  const TraceCall& call = trace.calls[frame.call];
  Time end = frame.stop;
  // If it stops because an argument of an operator is saved, all arguments of
  // that operator have been cast.
  if (!frame.saved.empty() && frame.stop < call.end) {
    const std::vector<StorageId>& reads =
        trace.operators[OperatorAt(frame.stop)].reads;
    if (std::ranges::find(reads, frame.saved.back().storage) != reads.end()) {
      ++end;
    }
  }
  std::vector<NaiveRecast> recasts;
  std::set<OperatorId> seen_casts;
  for (const OperatorId op : OperatorsIn(call.start, end)) {
    for (const OperatorId cast : trace.operators[op].recasts) {
      if (StartOf(cast) < call.start && seen_casts.insert(cast).second) {
        recasts.push_back({.op = cast, .user = op});
      }
    }
  }
  return recasts;
}

}  // namespace acplan::graph
