#pragma once

#include <cstdint>
#include <optional>
#include <random>
#include <vector>

#include "graph/base/flag.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "tests/support/random_step.h"

namespace acplan::graph {

test_support::StepOptions RandomOptions(std::mt19937& random);

// A module that may be a unit, and the number of operators of each of its calls.
struct RandomUnit {
  ModuleId module = {};
  int32_t length = 0;
};

// Returns random units; none is inside another one unless `may_nest`.
std::vector<RandomUnit> UnitsByChance(const Trace& trace, std::mt19937& random,
                                      bool may_nest = false);

std::vector<Flag> RandomSaves(int32_t length, std::mt19937& random);

// Returns the simulation, or nothing if it refuses the units.
std::optional<Simulation> Accepted(
    const Trace& trace, const std::vector<CheckpointedModule>& modules);

CheckpointedModule AllOthersRunAgain(ModuleId module,
                                     const std::vector<Flag>& saves);

// Returns whether some policy keeps views. Then a storage is there twice, and a
// trace does not tell which of the two is read.
bool SavesViews(const Trace& trace,
                const std::vector<CheckpointedModule>& modules);

// Compares simulations except for peak_by_category and peak_step, which follow
// from the rest.
void ExpectTheSame(const Simulation& simulation, const Simulation& naive);

}  // namespace acplan::graph
