#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/trace/prepared_trace.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

enum class FrameId : int32_t {};  // in Frames::list

// A cast that autocast kept from before a call, and makes again when the call
// runs again.
struct Recast {
  OperatorId op = {};    // the cast
  OperatorId user = {};  // the operator that needs it
};

// A call of a unit with gradients: PyTorch's checkpoint frame. It holds the
// call's arguments until autograd lets go of the last thing saved in it. When
// backward first asks for something saved in it, at `rerun_time`, the operators
// [call->start, rerun_stop) run again, without those that the policy saves.
struct Frame {
  // Returns whether the policy keeps what an operator of the call returns, on
  // the device or the host; KeptResults returns which of its results.
  bool Saves(OperatorId op) const {
    return HasPolicy() && Keeps(decisions[call->PlaceOf(op)]);
  }

  bool Offloads(OperatorId op) const {
    return Decides(op, OperatorDecision::kOffload);
  }

  // Returns whether an operator hands on stand-ins when the call runs again.
  bool Skips(OperatorId op) const {
    return Decides(op, OperatorDecision::kSkip);
  }

  // Returns whether an operator computes again when the call runs again.
  bool RunsAgain(OperatorId op) const {
    return !HasPolicy() || Decides(op, OperatorDecision::kRecompute);
  }

  bool HasPolicy() const { return decisions != nullptr; }

  // Returns which results of a saved operator are kept, as places in
  // TraceOperator::results; nullptr: all that it returns.
  const std::vector<int32_t>* KeptResults(OperatorId op) const {
    if (unit->kept_results.empty()) return nullptr;
    const auto entry = unit->kept_results.find(call->PlaceOf(op));
    return entry == unit->kept_results.end() ? nullptr : &entry->second;
  }

  // Returns whether the frame's arguments are saves of the frame around it.
  bool IsSavedByParent() const { return parent != kNone && !arguments.empty(); }

  // Returns whether the call holds its arguments; one that does not is given what is discarded
  // in the meantime.
  bool HoldsArguments() const {
    return std::ranges::all_of(arguments, [&](const StorageId argument) {
      return std::ranges::find(call->inputs, argument) != call->inputs.end();
    });
  }

  bool Decides(OperatorId op, OperatorDecision decision) const {
    return HasPolicy() && decisions[call->PlaceOf(op)] == decision;
  }

  const CheckpointedModule* unit = nullptr;
  // An operator of the call: the unit's decisions, or own_decisions; nullptr
  // where all run again.
  const OperatorDecision* decisions = nullptr;
  std::vector<OperatorDecision> own_decisions = {};
  // The policy skips an operator or does not keep all of what one returns.
  bool has_stand_ins = false;
  bool has_offload = false;
  const TraceCall* call = nullptr;
  CallId call_id = {};
  FrameId parent = kNone;    // the frame directly around it
  FrameId subtree_end = {};  // after the last of the frames inside it
  // Without what is saved in the frames inside.
  std::vector<SavedId> saved = {};
  // The storage of each argument that is a tensor given by position.
  std::vector<StorageId> arguments = {};
  // The storages of the unit's offloaded arguments.
  std::vector<StorageId> offloaded_arguments = {};
  // When autograd lets go of the last of what the frame saves, the arguments of
  // frames inside among it.
  Time release_time = 0;
  Time rerun_time = kNever;  // kNever: its operators do not run again
  Time rerun_stop = 0;       // the start of the operator before which they stop
  std::vector<Recast> recasts = {};  // in the order in which they are made
};

// Returns whether a frame keeps a storage that a saved operator of its call
// returns.
bool KeepsOutput(const Frame& frame, OperatorId op, StorageId storage,
                 const Trace& trace);

// The frames of a plan: those inside a frame follow it directly.
struct Frames {
  IndexedVector<FrameId, Frame> list;
  IndexedVector<CallId, FrameId> innermost;  // around or of a call
};

// Refers to the trace and to `modules`. Throws InputError, naming the module,
// for one that is never called, for `decisions` of a wrong length, and for
// kept_results of an operator that is not saved or of results that it has not.
Frames MakeFrames(const PreparedTrace& prepared,
                  const std::vector<CheckpointedModule>& modules);

}  // namespace acplan::graph
