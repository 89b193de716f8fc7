#pragma once

#include <cstdint>
#include <vector>

#include "problems/trace/problem/trace_problem.h"
#include "problems/trace/relaxation/witnesses.h"

namespace acplan::problems {

// A storage of which witnesses count too little at a time in a plan.
struct Miscounted {
  graph::StorageId storage = {};
  int64_t bytes = 0;                    // that are missing
  std::vector<Witness> witnesses = {};  // that would count it
  bool is_copy = false;                 // what is live was made again
  // It is not live, nor would it be without units, but a unit counts as releasing it.
  bool is_gone = false;
};

// Returns the storages that a plan shows as live at a time and that the witnesses count
// too low by half an allocation or more, ascending. The witnesses that would
// count one are the first of these that hold it in this plan: the program; the
// saved tensor outside of units that the fewest units would keep from holding;
// all units that hold it, with equal shares; a saved tensor of a unit that ran
// again. And the storages that units count as releasing though autograd has let go of
// them: the program counts those as they are.
std::vector<Miscounted> FindMiscounted(
    const TraceProblem& problem,
    const std::vector<graph::CheckpointedModule>& modules, graph::Time time,
    const Witnesses& witnesses);

}  // namespace acplan::problems
