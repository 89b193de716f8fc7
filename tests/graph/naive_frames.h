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
  int32_t call = 0;
  const CheckpointedModule* unit = nullptr;
  std::vector<SavedTensor> saved = {};
  int32_t asked = kNever;  // when backward first asks for something saved in it
  int32_t stop = 0;
  int32_t released = 0;
  // Storages that are offloaded, by the operator that does.
  std::vector<std::pair<int32_t, int32_t>> moved = {};
  bool is_released = false, is_fetched = false;
  std::map<int32_t, int32_t> fetched = {};  // by storage: what came back
};

std::vector<NaiveFrame> FramesOf(
    const Trace& trace, const std::vector<CheckpointedModule>& modules);

OperatorDecision DecisionOf(const Trace& trace, const NaiveFrame& frame,
                            int32_t op);

// Whether what an operator returns is kept, wherever.
bool IsSaved(const Trace& trace, const NaiveFrame& frame, int32_t op);

// Of a saved operator: the storages and the tensors that are kept.
std::set<int32_t> KeptStorages(const Trace& trace, const NaiveFrame& frame,
                               int32_t op);
bool IsTensorKept(const Trace& trace, const NaiveFrame& frame, int32_t tensor);

}  // namespace acplan::graph
