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

// Computes what a rank uses of a traced step. The trace is that of one device which has
// everything.

// Bytes that a rank has more than the one device, at each operator of the trace
// (negative: less). With W = options.world_size > 1:
// - parameters, gradients and optimizer state are a W-th each, rounded up;
// - with options.fsdp_units, whole are the parameters of a unit (those of units
//   inside it apart) while it runs, forward and backward, and while the unit
//   before it does, which is when FSDP2 prefetches them; those outside of all
//   units from the start of the step to the end of the backward pass; and the
//   gradients of a unit until its backward ends. What FSDP2 copies to
//   communicate is not in it.
// Throws InputError for a unit that is no module of the trace.
graph::IndexedVector<graph::OperatorId, int64_t> BytesOfRank(
    const graph::Trace& trace, const MemoryOptions& options);

// The same by what it is of: all but parameters, gradients and optimizer state
// is 0. Adds up to BytesOfRank.
using CategoryBytes = std::array<int64_t, graph::kStorageCategories>;
graph::IndexedVector<graph::OperatorId, CategoryBytes> BytesOfRankByCategory(
    const graph::Trace& trace, const MemoryOptions& options);

// What that is of at one operator, storage by storage: what a rank has less of one
// that is sharded, and what it has besides of a parameter that is whole, once for
// each unit that runs or is fetched and has it. Adds up to BytesOfRank there.
struct RankBytes {
  graph::StorageId storage = {};
  int64_t bytes = 0;
  bool is_gathered = false;  // what is besides
};
std::vector<RankBytes> BytesOfRankByStorage(const graph::Trace& trace,
                                            const MemoryOptions& options,
                                            graph::OperatorId op);

// The simulated step with these bytes added: live_bytes, peak_bytes and
// peak_step are those of a rank; peak_by_category stays that of the one device.
// Always a multiple of 512.
graph::Simulation OnRank(
    graph::Simulation simulation,
    const graph::IndexedVector<graph::OperatorId, int64_t>& bytes_of_rank);

// Returns the start of the operator of the trace before or at which each step runs: what
// runs again does so before the operator that asks for it.
graph::IndexedVector<graph::StepId, graph::Time> TimesOf(
    const graph::Simulation& simulation);

// The innermost module that runs at a step, forward, backward or again;
// "optimizer step" there, the root where none does.
std::string ModuleAt(const graph::Trace& trace,
                     const graph::Simulation& simulation, graph::StepId step);

}  // namespace acplan::problems
