#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <utility>
#include <vector>

#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// What naive_simulation.h follows: calls of units with gradients.
struct NaiveFrame {
  CallId call = {};
  const CheckpointedModule* unit = nullptr;
  int parent = -1;  // the innermost frame around it
  // Without what is saved in frames inside.
  std::vector<SavedTensor> saved = {};
  Time asked = kNever;  // when backward first asks for something saved in it
  Time stop = 0;
  Time released = 0;
  // Storages that are offloaded, by the operator that does.
  std::vector<std::pair<OperatorId, StorageId>> moved = {};
  bool is_released = false, is_fetched = false;
  std::map<StorageId, int32_t> fetched = {};  // the piece that came back
};

// In the order of calls. Of a frame inside of another one the tensors given by
// position are saved in that one, when the call begins.
std::vector<NaiveFrame> FramesOf(
    const Trace& trace, const std::vector<CheckpointedModule>& modules);

// Returns whether the arguments of a frame are saved in the one around it.
bool IsSavedAround(const Trace& trace, const NaiveFrame& frame);

OperatorDecision DecisionOf(const Trace& trace, const NaiveFrame& frame,
                            OperatorId op);

// Whether what an operator returns is kept, wherever.
bool IsSaved(const Trace& trace, const NaiveFrame& frame, OperatorId op);

// Of a saved operator: the storages and the tensors that are kept.
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
