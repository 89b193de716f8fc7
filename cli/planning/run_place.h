#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "graph/run/training_run.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

// Places in a training run, and what made its blocks, as printed.
namespace acplan::cli {

// The step that a run repeats.
struct StepInRun {
  const graph::Trace* trace = nullptr;
  const graph::LivedStep* step = nullptr;
};

// Returns the operator that runs at a moment; null if none does.
const graph::Simulation::Step* StepAt(const StepInRun& of_run,
                                      const graph::RunMoment& moment);

// Returns "iteration 2, forward, aten.mm.default in transformer.h.2", or another
// place of the run.
std::string PlaceInRunText(const StepInRun& of_run,
                           const graph::TrainingRun& run, int64_t event);
nlohmann::ordered_json PlaceInRunJson(const StepInRun& of_run,
                                      const graph::TrainingRun& run,
                                      int64_t event);

// Returns what made a storage: a line of Python, an operator, or what it is.
std::string MakerOf(const graph::Trace& trace, graph::StorageId storage);

}  // namespace acplan::cli
