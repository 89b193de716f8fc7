#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/indexed_vector.h"
#include "graph/trace/simulation.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// What of a plan without offload could go to the host, and a choice of it that
// brings the plan within its budget.

// What may go over the link, and where to.
struct LinkLimits {
  double bytes_per_second = 0;  // each way, above 0
  int64_t host_memory_bytes = INT64_MAX;
};

// An operator of a unit, and what moves if it offloads.
struct Movable {
  int32_t unit = 0;   // a place in the list of units
  int32_t place = 0;  // of the operator in each of the unit's calls
  std::vector<graph::MovedId> storages = {};
};
enum class MovableId : int32_t {};  // in a MovableList
using MovableList = graph::IndexedVector<MovableId, Movable>;

// The units with everything offloaded that may be: what a call makes and keeps,
// and what nothing writes to in place from then on.
std::vector<graph::CheckpointedModule> WithAllOffloaded(
    const TraceProblem& problem,
    const std::vector<graph::CheckpointedModule>& units);

// The operators of units that offload something, by unit and place. `use` is the
// simulation of these units.
MovableList MovablesOf(const TraceProblem& problem,
                       const std::vector<graph::CheckpointedModule>& units,
                       const graph::Simulation& use);

// A choice among movables.
struct OffloadChoice {
  graph::IndexedVector<MovableId, graph::Flag> is_chosen = {};
  double stall_ms = 0;
};

// What is asked of a choice. Refers to all of it.
struct OffloadQuestion {
  const TraceProblem& problem;
  const MovableList& movables;
  const graph::Simulation& saved;  // of a rank, nothing offloaded
  const graph::Simulation& moved;  // of a rank, all of them offloaded
  int64_t budget_bytes;
  LinkLimits limits;
  double most_stall_ms;  // choices that wait longer are of no interest
};

// A choice that keeps the budget and the limits, with little stall: greedy, not
// the least. Nothing where none is found.
std::optional<OffloadChoice> ChooseWhatMoves(const OffloadQuestion& question);

}  // namespace acplan::problems
