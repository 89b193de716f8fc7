#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/model/memory_model.h"

namespace acplan::problems {

// Computes the memory that a rank uses in a traced step. The trace is that of
// one device, which has everything.

// Returns the bytes that a rank has in addition to those of the one device, at
// each operator of the trace (negative: it has less). With W =
// options.world_size > 1:
// - each parameter, gradient and optimizer state is a W-th of its size, rounded
//   up;
// - with options.fsdp_units, the parameters of a unit (without those of units
//   inside it) are whole while it runs, forward and backward, and while the
//   unit before it does, which is when FSDP2 prefetches them; parameters
//   outside of all units are whole from the start of the step to the end of the
//   backward pass; the gradients of a unit are whole until its backward ends.
//   The copies that FSDP2 makes to communicate are not counted.
//
// Throws InputError for a unit that is no module of the trace.
graph::IndexedVector<graph::OperatorId, int64_t> BytesOfRank(
    const graph::Trace& trace, const MemoryOptions& options);

// Returns the same by category. Adds up to BytesOfRank. All categories except
// parameters, gradients and optimizer state have 0.
using CategoryBytes = std::array<int64_t, graph::kStorageCategories>;
graph::IndexedVector<graph::OperatorId, CategoryBytes> BytesOfRankByCategory(
    const graph::Trace& trace, const MemoryOptions& options);

// The change of one storage at one operator: the bytes that a rank lacks of a
// sharded storage, or has in addition because a parameter is whole, once for
// each unit that runs or is fetched and has the parameter. The changes add up
// to BytesOfRank there.
struct RankBytes {
  graph::StorageId storage = {};
  int64_t bytes = 0;
  bool is_gathered = false;  // whether the bytes are in addition
};
std::vector<RankBytes> BytesOfRankByStorage(const graph::Trace& trace,
                                            const MemoryOptions& options,
                                            graph::OperatorId op);

// Returns the simulated step with these bytes added: live_bytes, peak_bytes and
// peak_step are those of a rank; peak_by_category stays that of the one device.
// All bytes are multiples of 512.
graph::Simulation OnRank(
    graph::Simulation simulation,
    const graph::IndexedVector<graph::OperatorId, int64_t>& bytes_of_rank);

// Returns the start of the operator of the trace before or at which each step runs:
// what runs again does so before the operator that asks for it.
graph::IndexedVector<graph::StepId, graph::Time> TimesOf(
    const graph::Simulation& simulation);

// Returns the innermost module that runs at a step, whether in forward, in
// backward or again. Returns "optimizer step" in the optimizer step, and the
// root if no module runs.
std::string ModuleAt(const graph::Trace& trace,
                     const graph::Simulation& simulation, graph::StepId step);

}  // namespace acplan::problems
