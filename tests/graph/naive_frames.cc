#include "tests/graph/naive_frames.h"

#include <algorithm>

namespace acplan::graph {

OperatorDecision DecisionOf(const Trace& trace, const NaiveFrame& frame,
                            int32_t op) {
  if (frame.unit->decisions.empty()) return OperatorDecision::kRecompute;
  return frame.unit->decisions[op - trace.calls[frame.call].start];
}

bool IsSaved(const Trace& trace, const NaiveFrame& frame, int32_t op) {
  const OperatorDecision decision = DecisionOf(trace, frame, op);
  return decision == OperatorDecision::kSave ||
         decision == OperatorDecision::kOffload;
}

std::set<int32_t> KeptStorages(const Trace& trace, const NaiveFrame& frame,
                               int32_t op) {
  const TraceOperator& now = trace.operators[op];
  const auto kept =
      frame.unit->kept_results.find(op - trace.calls[frame.call].start);
  if (kept == frame.unit->kept_results.end()) {
    return {now.outputs.begin(), now.outputs.end()};
  }
  std::set<int32_t> storages;
  for (const int32_t r : kept->second) {
    storages.insert(trace.tensors[now.results[r]].storage);
  }
  return storages;
}

bool IsTensorKept(const Trace& trace, const NaiveFrame& frame, int32_t tensor) {
  const int32_t op = trace.tensors[tensor].op;
  const auto kept =
      frame.unit->kept_results.find(op - trace.calls[frame.call].start);
  if (kept == frame.unit->kept_results.end()) return true;
  return std::ranges::any_of(kept->second, [&](int32_t r) {
    return trace.operators[op].results[r] == tensor;
  });
}

namespace {

// By operator and then by result.
std::vector<std::pair<int32_t, int32_t>> MovedOf(const Trace& trace,
                                                 const NaiveFrame& frame) {
  std::vector<std::pair<int32_t, int32_t>> moved;
  std::set<int32_t> seen;
  const TraceCall& call = trace.calls[frame.call];
  for (int32_t op = call.start; op < call.end; ++op) {
    if (DecisionOf(trace, frame, op) != OperatorDecision::kOffload) continue;
    const std::set<int32_t> kept = KeptStorages(trace, frame, op);
    std::vector<int32_t> order;
    for (const int32_t t : trace.operators[op].results) {
      order.push_back(trace.tensors[t].storage);
    }
    order.insert(order.end(), kept.begin(), kept.end());
    for (const int32_t s : order) {
      if (kept.contains(s) && seen.insert(s).second) moved.emplace_back(op, s);
    }
  }
  return moved;
}

}  // namespace

std::vector<NaiveFrame> FramesOf(
    const Trace& trace, const std::vector<CheckpointedModule>& modules) {
  std::vector<NaiveFrame> frames;
  for (int32_t c = 0; c < std::ssize(trace.calls); ++c) {
    const auto unit = std::ranges::find(modules, trace.calls[c].module,
                                        &CheckpointedModule::module);
    if (unit == modules.end() || trace.calls[c].no_grad) continue;
    NaiveFrame frame = {
        .call = c, .unit = &*unit, .released = trace.calls[c].end};
    for (const SavedTensor& saved : trace.saved) {
      int32_t around = saved.call;
      while (around >= 0 && around != c) around = trace.calls[around].parent;
      if (around != c) continue;
      frame.saved.push_back(saved);
      frame.asked = std::min(frame.asked, saved.unpacked);
      frame.stop = std::max(frame.stop, saved.packed);
      frame.released = std::max(frame.released, saved.released);
    }
    frame.moved = MovedOf(trace, frame);
    frames.push_back(frame);
  }
  return frames;
}

}  // namespace acplan::graph
