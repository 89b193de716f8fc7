#include "graph/trace/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <utility>

#include "graph/base/input_error.h"

namespace acplan::graph {
namespace {

void RequireDecisions(const CheckpointedModule& unit, const TraceCall& call,
                      const Trace& trace) {
  const auto length = static_cast<size_t>(call.end - call.start);
  if (unit.decisions.empty() || unit.decisions.size() == length) return;
  throw InputError(fmt::format(
      "module '{}': expected a decision for each of the {} "
      "operators of a call, found {}",
      trace.modules[call.module].fqn, length, unit.decisions.size()));
}

// What is kept must be there in each call.
void RequireResults(const CheckpointedModule& unit, const TraceCall& call,
                    const Trace& trace) {
  for (const auto& [place, kept] : unit.kept_results) {
    const auto complaint = [&](const std::string& what) {
      return InputError(fmt::format("module '{}': operator {}: {}",
                                    trace.modules[call.module].fqn, place,
                                    what));
    };
    const bool is_saved = place >= 0 && place < std::ssize(unit.decisions) &&
                          Keeps(unit.decisions[place]);
    if (!is_saved) {
      throw complaint(
          "expected results to be kept of a saved operator, found one that is "
          "not saved");
    }
    const auto count = static_cast<int32_t>(
        trace.operators[call.start + place].results.size());
    for (size_t k = 0; k < kept.size(); ++k) {
      if (kept[k] < 0 || kept[k] >= count) {
        throw complaint(fmt::format(
            "expected results to be kept of the {} that it makes, found index "
            "{}",
            count, kept[k]));
      }
      if (k > 0 && kept[k] <= kept[k - 1]) {
        throw complaint(fmt::format(
            "expected results to be kept in ascending order, found {} after {}",
            kept[k], kept[k - 1]));
      }
    }
  }
}

bool Has(const CheckpointedModule& unit, OperatorDecision decision) {
  return std::ranges::find(unit.decisions, decision) != unit.decisions.end();
}

// In the order of calls, so frames inside follow those around them.
Frames FramesOfCalls(const Trace& trace,
                     const std::vector<CheckpointedModule>& modules) {
  std::vector<const CheckpointedModule*> unit_of(trace.modules.size());
  for (const CheckpointedModule& unit : modules) unit_of[unit.module] = &unit;
  Frames frames;
  frames.innermost.assign(trace.calls.size(), kNoFrame);
  std::vector<char> is_called(trace.modules.size(), 0);
  for (int32_t c = 0; c < std::ssize(trace.calls); ++c) {
    const TraceCall& call = trace.calls[c];
    const int32_t parent =
        call.parent < 0 ? kNoFrame : frames.innermost[call.parent];
    frames.innermost[c] = parent;
    is_called[call.module] = 1;
    const CheckpointedModule* unit = unit_of[call.module];
    if (unit == nullptr) continue;
    if (call.no_grad) continue;
    RequireDecisions(*unit, call, trace);
    RequireResults(*unit, call, trace);
    Frame frame = {
        .unit = unit, .call = &call, .call_index = c, .parent = parent};
    if (!unit->decisions.empty()) frame.decisions = unit->decisions.data();
    frame.has_stand_ins =
        !unit->kept_results.empty() || Has(*unit, OperatorDecision::kSkip);
    frame.has_offload = Has(*unit, OperatorDecision::kOffload);
    frame.arguments.reserve(call.arguments.size());
    for (const int32_t t : call.arguments) {
      frame.arguments.push_back(trace.tensors[t].storage);
    }
    frames.innermost[c] = static_cast<int32_t>(frames.list.size());
    frames.list.push_back(std::move(frame));
  }
  for (const CheckpointedModule& unit : modules) {
    if (is_called[unit.module]) continue;
    throw InputError(
        fmt::format("module '{}': expected one that is called, found none",
                    trace.modules[unit.module].fqn));
  }
  return frames;
}

std::vector<Recast> RecastsOf(const Frame& frame,
                              const PreparedTrace& prepared) {
  const Trace& trace = *prepared.trace;
  const int32_t start = frame.call->start;
  // What stops at a save of an operator's argument has cast all of them.
  const bool casts_at_stop =
      !frame.saved.empty() && frame.rerun_stop < frame.call->end &&
      std::ranges::find(trace.operators[frame.rerun_stop].reads,
                        trace.saved[frame.saved.back()].storage) !=
          trace.operators[frame.rerun_stop].reads.end();
  const int32_t end = casts_at_stop ? frame.rerun_stop + 1 : frame.rerun_stop;
  std::vector<Recast> recasts;
  for (auto recast =
           std::ranges::lower_bound(prepared.recasts, std::pair(start, 0));
       recast != prepared.recasts.end() && recast->first < end; ++recast) {
    const auto& [op, cast] = *recast;
    const bool is_made =
        cast >= start ||
        std::ranges::find(recasts, cast, &Recast::op) != recasts.end();
    if (!is_made) recasts.push_back({.op = cast, .user = op});
  }
  return recasts;
}

// From the frames inside to those around them.
void FindWhenFramesRunAgain(std::vector<Frame>& frames,
                            const PreparedTrace& prepared) {
  for (auto f = static_cast<int32_t>(frames.size()) - 1; f >= 0; --f) {
    Frame& frame = frames[f];
    frame.subtree_end = std::max(frame.subtree_end, f + 1);
    frame.release_time = std::max(frame.release_time, frame.call->end);
    for (const int32_t s : frame.saved) {
      const SavedTensor& saved = prepared.trace->saved[s];
      frame.release_time = std::max(frame.release_time, saved.released);
      frame.rerun_time = std::min(frame.rerun_time, saved.unpacked);
      frame.rerun_stop = std::max(frame.rerun_stop, saved.packed);
    }
    frame.recasts = RecastsOf(frame, prepared);
    if (frame.parent == kNoFrame) continue;
    Frame& parent = frames[frame.parent];
    parent.subtree_end = std::max(parent.subtree_end, frame.subtree_end);
    if (!frame.IsSavedByParent()) continue;
    parent.release_time = std::max(parent.release_time, frame.release_time);
    parent.rerun_time = std::min(parent.rerun_time, frame.rerun_time);
    parent.rerun_stop = std::max(parent.rerun_stop, frame.call->start);
  }
}

}  // namespace

bool KeepsOutput(const Frame& frame, int32_t op, int32_t storage,
                 const Trace& trace) {
  const TraceOperator& saved = trace.operators[op];
  const std::vector<int32_t>* kept = frame.KeptResults(op);
  if (kept == nullptr) {
    return std::ranges::find(saved.outputs, storage) != saved.outputs.end();
  }
  return std::ranges::any_of(*kept, [&](int32_t result) {
    return trace.tensors[saved.results[result]].storage == storage;
  });
}

Frames MakeFrames(const PreparedTrace& prepared,
                  const std::vector<CheckpointedModule>& modules) {
  const Trace& trace = *prepared.trace;
  Frames frames = FramesOfCalls(trace, modules);
  for (int32_t s = 0; s < std::ssize(trace.saved); ++s) {
    const int32_t call = trace.saved[s].call;
    const int32_t f = call < 0 ? kNoFrame : frames.innermost[call];
    if (f != kNoFrame) frames.list[f].saved.push_back(s);
  }
  FindWhenFramesRunAgain(frames.list, prepared);
  return frames;
}

}  // namespace acplan::graph
