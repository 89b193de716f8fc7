#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string_view>
#include <vector>

#include "graph/run/ddp_options.h"
#include "graph/run/length_order.h"
#include "graph/run/training_run.h"
#include "graph/trace/length_traces.h"
#include "problems/plan/device_run.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// A run of batches of several lengths.
struct LengthProblem {
  std::vector<graph::TraceOfLength> traced;  // ascending
  std::vector<graph::LengthStep> order;
  // The lengths of the order, ascending: their own traces, or steps between
  // (graph::TraceAt).
  std::vector<graph::TraceOfLength> lengths = {};
  std::vector<int64_t> counts = {};  // batches of training, by length
  // The steps whose forward passes the evaluations run, by length; empty: those of
  // training.
  std::vector<graph::Trace> evaluations = {};

  // Returns the place of a length of the order.
  size_t PlaceOf(int64_t length) const;
  // Returns the batches of training.
  int64_t Batches() const;
  // Returns the place of the longest length that is trained.
  size_t Longest() const;
  // Returns the step whose forward pass an evaluation of the length at a place runs.
  const graph::Trace& EvaluationTrace(size_t place) const;
};

// Sorts the traces by length, and finds the step of each length of the order. `evaluated`
// are traces for evaluations whose inputs are others than those of training of that
// length. Throws InputError for a length that two traces have, for traces of different
// models (graph::ModelDifference), and under the conditions of TraceAt.
LengthProblem MakeLengthProblem(
    std::vector<graph::TraceOfLength> traced,
    std::vector<graph::LengthStep> order,
    std::vector<graph::TraceOfLength> evaluated = {});

// The steps of a run of batches of several lengths, in the order of
// LengthProblem::lengths: those of training under a plan, then evaluations.
struct LengthSteps {
  std::vector<StepOfPlan> steps;

  // Returns the shapes of a run. Refers to the problem and to these steps.
  std::vector<graph::RunShape> Shapes(const LengthProblem& problem) const;
};

// Returns the steps under plans: `units` has the units of the plan for the length at a
// place of LengthProblem::lengths. Throws InputError, naming the length, under the conditions of LiveStep.
LengthSteps LiveSteps(
    const LengthProblem& problem,
    const std::function<const std::vector<PlannedModule>&(size_t)>& units);

// Throws InputError under the conditions of graph::RequireDataParallel, for any step of
// the run.
void RequireDataParallel(const LengthProblem& problem,
                         const graph::DdpOptions& options,
                         std::string_view what);

// Returns what the run asks of any allocator. The options' iterations and
// microbatches count for nothing. Throws InputError for a `ddp` that is none, or under the
// conditions of RequireDataParallel.
graph::TrainingRun RunOf(const LengthProblem& problem, const LengthSteps& steps,
                         const graph::RunOptions& options);
graph::TrainingRun RunOf(const LengthProblem& problem, const LengthSteps& steps,
                         const DeviceSetting& setting);

// Returns the mean time of the batches of training in which operators run again.
double MeanRecomputeMs(const LengthProblem& problem, const LengthSteps& steps);

}  // namespace acplan::problems
