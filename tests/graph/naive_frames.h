#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// The frames that naive_simulation.h follows: calls of units with gradients.
struct NaiveFrame {
  CallId call = {};
  const CheckpointedModule* unit = nullptr;
  int parent = -1;  // the innermost frame around it
  // Without the tensors that are saved in frames inside.
  std::vector<SavedTensor> saved = {};
  // When backward first asks for something saved in the frame.
  Time asked_at = kNever;
  Time stop = 0;
  Time released = 0;
  // Offloaded storages, with the operator of each that is offloaded; kNone: arguments.
  std::vector<std::pair<OperatorId, StorageId>> moved_storages = {};
  bool is_released = false, is_fetched = false;
  // The piece of memory (naive_simulation.cc) that is the copy that came back.
  std::map<StorageId, int32_t> fetched = {};
};

// Returns the frames in the order of calls. If a frame is inside of another
// one, the tensors given by position are saved in that one when the call
// begins.
std::vector<NaiveFrame> FramesOf(
    const Trace& trace, const std::vector<CheckpointedModule>& modules);

// Returns whether the arguments of a frame are saved in the one around it.
bool IsSavedAround(const Trace& trace, const NaiveFrame& frame);

OperatorDecision DecisionOf(const Trace& trace, const NaiveFrame& frame,
                            OperatorId op);

// Returns whether the result of an operator is kept, be it on the device or the
// host.
bool IsSaved(const Trace& trace, const NaiveFrame& frame, OperatorId op);

// Returns the kept storages of a saved operator.
std::set<StorageId> KeptStorages(const Trace& trace, const NaiveFrame& frame,
                                 OperatorId op);
bool IsTensorKept(const Trace& trace, const NaiveFrame& frame, TensorId tensor);

// The casts that autocast kept from before the call and makes again in it, with
// the operators that need them.
struct NaiveRecast {
  OperatorId op = {};
  OperatorId user = {};
};
std::vector<NaiveRecast> NaiveRecastsOf(const Trace& trace,
                                        const NaiveFrame& frame);

}  // namespace acplan::graph
