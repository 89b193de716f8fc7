#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "graph/run/length_order.h"
#include "graph/run/training_run.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

// Places in a training run, and what made its blocks, as printed.
namespace acplan::cli {

// The steps of a run: the one that it repeats, or those of batches of several lengths.
struct RunSteps {
  std::vector<graph::RunShape> shapes;  // by RunMoment::shape
  // The batches, by RunMoment::iteration; empty: iterations of one step.
  std::vector<graph::LengthStep> batches = {};

  const graph::Trace& TraceOf(const graph::RunMoment& moment) const;
};

// Returns the operator that runs at a moment; null if none does.
const graph::Simulation::Step* StepAt(const RunSteps& steps,
                                      const graph::RunMoment& moment);

// Returns "iteration 2, forward, aten.mm.default in transformer.h.2", or another
// place of the run. Batches are "batch 2 of length 512".
std::string PlaceInRunText(const RunSteps& steps, const graph::TrainingRun& run,
                           int64_t event);
nlohmann::ordered_json PlaceInRunJson(const RunSteps& steps,
                                      const graph::TrainingRun& run,
                                      int64_t event);

// Returns what made the block that an event allocates: a line of Python, an operator, or
// what it is.
std::string MakerOf(const RunSteps& steps, const graph::TrainingRun& run,
                    int64_t event);

}  // namespace acplan::cli
