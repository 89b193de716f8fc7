#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "graph/base/flag.h"
#include "graph/base/indexed_vector.h"
#include "graph/trace/simulation.h"
#include "problems/model/link_limits.h"
#include "problems/trace/problem/trace_problem.h"

namespace acplan::problems {

// The results and arguments of a plan's units that could go to the host, and a choice
// among them that brings the plan within its budget.

// An operator or an argument of a unit, and the storages that move if it is offloaded.
struct Movable {
  int32_t unit = 0;  // index in the list of units
  bool is_argument = false;
  int32_t place = 0;  // in each of the unit's calls
  std::vector<graph::MovedId> moved_storages = {};
};
enum class MovableId : int32_t {};  // in a MovableList
using MovableList = graph::IndexedVector<MovableId, Movable>;

// Returns what the allocations of all storages have on top of their bytes.
int64_t RoundingBytes(const graph::Trace& trace);

// Returns the units with all offloaded that may be: operators whose storages a call
// makes and keeps and which nothing writes to in place afterwards, and arguments that
// the step makes and that no other call of a unit holds.
std::vector<graph::CheckpointedModule> WithAllOffloaded(
    const TraceProblem& problem,
    const std::vector<graph::CheckpointedModule>& units);

// Returns the operators and arguments of units that move something, by unit and place.
// `use` is the simulation of these units.
MovableList MovablesOf(const TraceProblem& problem,
                       const std::vector<graph::CheckpointedModule>& units,
                       const graph::Simulation& use);

// Offloads a movable of the units.
void Offload(const Movable& movable,
             std::vector<graph::CheckpointedModule>& units);

// A choice among movables.
struct OffloadChoice {
  graph::IndexedVector<MovableId, graph::Flag> is_chosen = {};
  double stall_ms = 0;
};

// The terms of a choice. Refers to all its parts.
struct OffloadQuestion {
  const TraceProblem& problem;
  const MovableList& movables;
  const graph::Simulation& saved_run;  // of a rank, nothing offloaded
  const graph::Simulation& moved_run;  // of a rank, all movables offloaded
  int64_t budget_bytes;
  LinkLimits limits;
  double most_stall_ms;  // choices that wait longer are not wanted
};

// Returns a choice that keeps the budget and the limits, with little stall:
// greedy, not necessarily the least. Returns nothing if it finds none.
std::optional<OffloadChoice> ChooseWhatMoves(const OffloadQuestion& question);

}  // namespace acplan::problems
