#include "graph/trace/frames.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <ranges>
#include <string>
#include <utility>

#include "graph/base/flag.h"
#include "graph/base/input_error.h"
#include "graph/trace/trace_calls.h"

namespace acplan::graph {
namespace {

void RequireDecisions(const CheckpointedModule& unit, const TraceCall& call,
                      const Trace& trace) {
  const auto length = static_cast<size_t>(call.OperatorCount());
  if (unit.decisions.empty() || unit.decisions.size() == length) return;
  throw InputError(fmt::format(
      "module '{}': expected a decision for each of the {} "
      "operators of a call, found {}",
      trace.modules[call.module].fqn, length, unit.decisions.size()));
}

// Refuses kept results that are not there in each call.
void RequireResults(const CheckpointedModule& unit, const TraceCall& call,
                    const Trace& trace) {
  for (const auto& [place, results] : unit.kept_results) {
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
        trace.operators[call.AtPlace(place)].results.size());
    for (size_t k = 0; k < results.size(); ++k) {
      if (results[k] < 0 || results[k] >= count) {
        throw complaint(fmt::format(
            "expected results to be kept of the {} that it makes, found index "
            "{}",
            count, results[k]));
      }
      if (k > 0 && results[k] <= results[k - 1]) {
        throw complaint(fmt::format(
            "expected results to be kept in ascending order, found {} after {}",
            results[k], results[k - 1]));
      }
    }
  }
}

// Refuses offloaded arguments that are not there in each call.
void RequireArguments(const CheckpointedModule& unit, const TraceCall& call,
                      const Trace& trace) {
  const std::vector<int32_t>& places = unit.offloaded_arguments;
  const int32_t count = GivenCount(call);
  for (size_t k = 0; k < places.size(); ++k) {
    const bool ascends = k == 0 || places[k] > places[k - 1];
    if (places[k] >= 0 && places[k] < count && ascends) continue;
    throw InputError(
        fmt::format("module '{}': expected ascending places of offloaded "
                    "arguments, of the {} "
                    "tensors that a call is given, found {}",
                    trace.modules[call.module].fqn, count, places[k]));
  }
}

bool Has(const CheckpointedModule& unit, OperatorDecision decision) {
  return std::ranges::find(unit.decisions, decision) != unit.decisions.end();
}

// In the order of calls, so frames inside follow those around them.
Frames FramesOfCalls(const Trace& trace,
                     const std::vector<CheckpointedModule>& modules) {
  IndexedVector<ModuleId, const CheckpointedModule*> unit_of(
      trace.modules.size(), nullptr);
  for (const CheckpointedModule& unit : modules) unit_of[unit.module] = &unit;
  Frames frames;
  frames.innermost.assign(trace.calls.size(), kNone);
  IndexedVector<ModuleId, Flag> is_called(trace.modules.size(), false);
  for (const CallId c : trace.calls.ids()) {
    const TraceCall& call = trace.calls[c];
    const FrameId parent =
        call.parent == kNone ? kNone : frames.innermost[call.parent];
    frames.innermost[c] = parent;
    is_called[call.module] = true;
    const CheckpointedModule* unit = unit_of[call.module];
    if (unit == nullptr) continue;
    if (call.no_grad) continue;
    RequireDecisions(*unit, call, trace);
    RequireResults(*unit, call, trace);
    RequireArguments(*unit, call, trace);
    Frame frame = {.unit = unit, .call = &call, .call_id = c, .parent = parent};
    if (!unit->decisions.empty()) frame.decisions = unit->decisions.data();
    frame.has_stand_ins =
        !unit->kept_results.empty() || Has(*unit, OperatorDecision::kSkip);
    frame.has_offload = Has(*unit, OperatorDecision::kOffload) ||
                        !unit->offloaded_arguments.empty();
    frame.arguments.reserve(call.arguments.size());
    for (const TensorId t : call.arguments) {
      frame.arguments.push_back(trace.tensors[t].storage);
    }
    for (const int32_t place : unit->offloaded_arguments) {
      frame.offloaded_arguments.push_back(GivenStorage(trace, call, place));
    }
    frames.innermost[c] = frames.list.Add(std::move(frame));
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
  const OperatorId first = frame.call->AtPlace(0);
  const OperatorId stop = OperatorAt(frame.rerun_stop);
  // A rerun that stops at a save of an operator's argument has cast all of them.
  const bool casts_at_stop =
      !frame.saved.empty() && frame.rerun_stop < frame.call->end &&
      std::ranges::find(trace.operators[stop].reads,
                        trace.saved[frame.saved.back()].storage) !=
          trace.operators[stop].reads.end();
  const OperatorId end = casts_at_stop ? Next(stop) : stop;
  std::vector<Recast> recasts;
  for (auto recast = std::ranges::lower_bound(prepared.recasts,
                                              std::pair(first, OperatorId{0}));
       recast != prepared.recasts.end() && recast->first < end; ++recast) {
    const auto& [op, cast] = *recast;
    const bool is_made =
        cast >= first ||
        std::ranges::find(recasts, cast, &Recast::op) != recasts.end();
    if (!is_made) recasts.push_back({.op = cast, .user = op});
  }
  return recasts;
}

// Lets operators that run once within a call be no part of what runs again.
void LeaveOut(IndexedVector<FrameId, Frame>& frames,
              const std::vector<OperatorId>& once_operators) {
  if (once_operators.empty()) return;
  for (Frame& frame : frames) {
    const TraceCall& call = *frame.call;
    const auto first =
        std::ranges::lower_bound(once_operators, OperatorAt(call.start));
    const auto end =
        std::ranges::lower_bound(once_operators, OperatorAt(call.end));
    if (first == end) continue;
    frame.own_decisions = frame.unit->decisions;
    frame.own_decisions.resize(call.OperatorCount(),
                               OperatorDecision::kRecompute);
    for (auto op = first; op != end; ++op) {
      frame.own_decisions[call.PlaceOf(*op)] = OperatorDecision::kSkip;
    }
    frame.decisions = frame.own_decisions.data();
    frame.has_stand_ins = true;
  }
}

// From the frames inside to those around them.
void FindWhenFramesRunAgain(IndexedVector<FrameId, Frame>& frames,
                            const PreparedTrace& prepared) {
  for (const FrameId f : std::views::reverse(frames.ids())) {
    Frame& frame = frames[f];
    frame.subtree_end = std::max(frame.subtree_end, Next(f));
    frame.release_time = std::max(frame.release_time, frame.call->end);
    for (const SavedId s : frame.saved) {
      const SavedTensor& saved = prepared.trace->saved[s];
      frame.release_time = std::max(frame.release_time, saved.released);
      frame.rerun_time = std::min(frame.rerun_time, saved.unpacked);
      frame.rerun_stop = std::max(frame.rerun_stop, saved.packed);
    }
    if (!frame.unit->stops_early && frame.rerun_time != kNever) {
      frame.rerun_stop = frame.call->end;
    }
    frame.recasts = RecastsOf(frame, prepared);
    if (frame.parent == kNone) continue;
    Frame& parent = frames[frame.parent];
    parent.subtree_end = std::max(parent.subtree_end, frame.subtree_end);
    if (!frame.IsSavedByParent()) continue;
    parent.release_time = std::max(parent.release_time, frame.release_time);
    parent.rerun_time = std::min(parent.rerun_time, frame.rerun_time);
    parent.rerun_stop = std::max(parent.rerun_stop, frame.call->start);
  }
}

}  // namespace

bool KeepsOutput(const Frame& frame, OperatorId op, StorageId storage,
                 const Trace& trace) {
  const TraceOperator& saved = trace.operators[op];
  const std::vector<int32_t>* kept_results = frame.KeptResults(op);
  if (kept_results == nullptr) {
    return std::ranges::find(saved.outputs, storage) != saved.outputs.end();
  }
  return std::ranges::any_of(*kept_results, [&](int32_t result) {
    return trace.tensors[saved.results[result]].storage == storage;
  });
}

Frames MakeFrames(const PreparedTrace& prepared,
                  const std::vector<CheckpointedModule>& modules) {
  const Trace& trace = *prepared.trace;
  Frames frames = FramesOfCalls(trace, modules);
  LeaveOut(frames.list, prepared.once_operators);
  for (const SavedId s : trace.saved.ids()) {
    const CallId call = trace.saved[s].call;
    const FrameId f = call == kNone ? kNone : frames.innermost[call];
    if (f != kNone) frames.list[f].saved.push_back(s);
  }
  FindWhenFramesRunAgain(frames.list, prepared);
  return frames;
}

}  // namespace acplan::graph
