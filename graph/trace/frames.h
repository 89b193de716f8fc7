#pragma once

#include <cstdint>
#include <vector>

#include "graph/trace/prepared_trace.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// "None" among frames, as it is -1 among the trace's indices.
inline constexpr int32_t kNoFrame = -1;

// A cast that autocast kept from before a call, and makes again when the call
// runs again.
struct Recast {
  int32_t op = 0;    // the cast
  int32_t user = 0;  // the operator that needs it
};

// A call of a unit with gradients: PyTorch's checkpoint frame. It holds the
// call's arguments until autograd lets go of the last thing saved in it. When
// backward first asks for something saved in it, at `rerun_time`, the operators
// [call->start, rerun_stop) run again, without those that the policy saves.
struct Frame {
  // Returns whether the policy keeps what an operator of the call returns, on
  // the device or the host; of its results KeptResults tells which.
  bool Saves(int32_t op) const {
    return HasPolicy() && Keeps(decisions[op - call->start]);
  }

  bool Offloads(int32_t op) const {
    return Decides(op, OperatorDecision::kOffload);
  }

  // Returns whether an operator hands on stand-ins when the call runs again.
  bool Skips(int32_t op) const { return Decides(op, OperatorDecision::kSkip); }

  // Returns whether an operator computes again when the call runs again.
  bool RunsAgain(int32_t op) const {
    return !HasPolicy() || Decides(op, OperatorDecision::kRecompute);
  }

  bool HasPolicy() const { return decisions != nullptr; }

  // Which results of a saved operator are kept, as places in
  // TraceOperator::results; nullptr: all that it returns.
  const std::vector<int32_t>* KeptResults(int32_t op) const {
    if (unit->kept_results.empty()) return nullptr;
    const auto kept = unit->kept_results.find(op - call->start);
    return kept == unit->kept_results.end() ? nullptr : &kept->second;
  }

  // Returns whether the frame's arguments are saves of the frame around it.
  bool IsSavedByParent() const {
    return parent != kNoFrame && !arguments.empty();
  }

  bool Decides(int32_t op, OperatorDecision decision) const {
    return HasPolicy() && decisions[op - call->start] == decision;
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
  int32_t call_index = 0;
  int32_t parent = kNoFrame;  // the frame directly around it
  int32_t subtree_end = 0;    // after the last of the frames inside it
  // In Trace::saved; without what is saved in the frames inside.
  std::vector<int32_t> saved = {};
  // By argument that is a tensor given by position: its storage.
  std::vector<int32_t> arguments = {};
  // When autograd lets go of the last of what the frame saves, the arguments of
  // frames inside among it.
  int32_t release_time = 0;
  int32_t rerun_time = kNever;       // kNever: its operators do not run again
  int32_t rerun_stop = 0;            // the operator before which they stop
  std::vector<Recast> recasts = {};  // in the order in which they are made
};

// Returns whether a frame keeps a storage that a saved operator of its call
// returns.
bool KeepsOutput(const Frame& frame, int32_t op, int32_t storage,
                 const Trace& trace);

// The frames of a plan: those inside a frame follow it directly.
struct Frames {
  std::vector<Frame> list;
  std::vector<int32_t> innermost;  // by call: the innermost frame, or kNoFrame
};

// Refers to the trace and to `modules`. Throws InputError, naming the module,
// for one that is never called, for `decisions` of a wrong length, and for
// kept_results of an operator that is not saved or of results that it has not.
Frames MakeFrames(const PreparedTrace& prepared,
                  const std::vector<CheckpointedModule>& modules);

}  // namespace acplan::graph
