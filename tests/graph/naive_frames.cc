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
  const auto kept =
      frame.unit->kept_results.find(trace.calls[frame.call].PlaceOf(op));
  if (kept == frame.unit->kept_results.end()) {
    return {now.outputs.begin(), now.outputs.end()};
  }
  std::set<StorageId> storages;
  for (const int32_t r : kept->second) {
    storages.insert(trace.tensors[now.results[r]].storage);
  }
  return storages;
}

bool IsTensorKept(const Trace& trace, const NaiveFrame& frame,
                  TensorId tensor) {
  const OperatorId op = trace.tensors[tensor].op;
  const auto kept =
      frame.unit->kept_results.find(trace.calls[frame.call].PlaceOf(op));
  if (kept == frame.unit->kept_results.end()) return true;
  return std::ranges::any_of(kept->second, [&](int32_t r) {
    return trace.operators[op].results[r] == tensor;
  });
}

namespace {

// By operator and then by result.
std::vector<std::pair<OperatorId, StorageId>> MovedOf(const Trace& trace,
                                                      const NaiveFrame& frame) {
  std::vector<std::pair<OperatorId, StorageId>> moved;
  std::set<StorageId> seen;
  const TraceCall& call = trace.calls[frame.call];
  for (const OperatorId op : call.Operators()) {
    if (DecisionOf(trace, frame, op) != OperatorDecision::kOffload) continue;
    const std::set<StorageId> kept = KeptStorages(trace, frame, op);
    std::vector<StorageId> order;
    for (const TensorId t : trace.operators[op].results) {
      order.push_back(trace.tensors[t].storage);
    }
    order.insert(order.end(), kept.begin(), kept.end());
    for (const StorageId s : order) {
      if (kept.contains(s) && seen.insert(s).second) moved.emplace_back(op, s);
    }
  }
  return moved;
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
    const int around = InnermostFrame(trace, frames, saved.call);
    if (around < 0) continue;
    NaiveFrame& frame = frames[around];
    frame.saved.push_back(saved);
    frame.asked = std::min(frame.asked, saved.unpacked);
    frame.stop = std::max(frame.stop, saved.packed);
    frame.released = std::max(frame.released, saved.released);
  }
  for (size_t f = frames.size(); f-- > 0;) {
    NaiveFrame& frame = frames[f];
    frame.moved = MovedOf(trace, frame);
    if (!IsSavedAround(trace, frame)) continue;
    NaiveFrame& around = frames[frame.parent];
    around.asked = std::min(around.asked, frame.asked);
    around.stop = std::max(around.stop, trace.calls[frame.call].start);
    around.released = std::max(around.released, frame.released);
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
  // Where it stops because an argument of an operator is saved, all arguments of
  // that have been cast.
  if (!frame.saved.empty() && frame.stop < call.end) {
    const std::vector<StorageId>& reads =
        trace.operators[OperatorAt(frame.stop)].reads;
    if (std::ranges::find(reads, frame.saved.back().storage) != reads.end()) {
      ++end;
    }
  }
  std::vector<NaiveRecast> recasts;
  std::set<OperatorId> seen;
  for (const OperatorId op : OperatorsIn(call.start, end)) {
    for (const OperatorId cast : trace.operators[op].recasts) {
      if (StartOf(cast) < call.start && seen.insert(cast).second) {
        recasts.push_back({.op = cast, .user = op});
      }
    }
  }
  return recasts;
}

}  // namespace acplan::graph
