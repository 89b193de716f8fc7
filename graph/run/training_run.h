#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "graph/allocator/allocator_events.h"
#include "graph/run/ddp_options.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

// How a program runs its steps.
struct RunOptions {
  int64_t iterations = 6;
  // The most of an iteration: those between the first and the last are alike.
  int64_t microbatches = 8;
  // True where each microbatch brings tensors of its own, which are on the device
  // before those of the last one go, as in `for batch in loader`.
  bool renews_inputs = true;
  // True where the optimizer's state is made before the first iteration, right
  // after the model is put on the device.
  bool makes_state_first = false;
  // True where the model's tensors are put on the device in descending size.
  bool puts_largest_first = false;
  // True where the program calls torch.cuda.empty_cache() between forward and
  // backward, between backward and update, or there in the first iteration alone.
  bool empties_cache_after_forward = false;
  bool empties_cache_before_update = false;
  bool empties_cache_before_first_update = false;
  // The model is in a DistributedDataParallel, where this has a value.
  std::optional<DdpOptions> ddp = {};

  bool operator==(const RunOptions&) const = default;
};

// The id that memory of DistributedDataParallel has in place of a storage's.
inline constexpr StorageId kOfDdp{-2};

// A step of a run: of inputs of one shape, under one plan or none. Refers to both.
struct RunShape {
  const Trace* trace = nullptr;
  // A Simulator of the trace returns it for a plan; or it is EvaluationOf the trace.
  const LivedStep* step = nullptr;
  bool is_evaluation = false;
};

// The place in a run where memory is asked for or freed.
struct RunMoment {
  // -1: the model is put on the device. In a run of several shapes, the place in its
  // order.
  int32_t iteration = -1;
  int32_t microbatch = 0;  // in its iteration
  int32_t shape = 0;
  // In LivedStep::steps; kNone: before the first of them; the end of them: after the
  // last.
  StepId step = kNone;

  bool operator==(const RunMoment&) const = default;
};

// The place after an iteration.
struct IterationEnd {
  size_t events = 0;  // before it
  // The storages that live on, and their blocks.
  std::vector<std::pair<StorageId, int32_t>> blocks;
};

// The requests of a training run to an allocator.
struct TrainingRun {
  AllocatorEvents events;
  std::vector<RunMoment> moments;   // by event
  std::vector<StorageId> storages;  // of the trace, or kOfDdp; by block
  std::vector<IterationEnd> iteration_ends;
  // False if an iteration that leaves memory as an earlier one did says nothing about
  // later ones, because these are of other shapes.
  bool has_equal_iterations = true;

  // Returns the storage whose block an event allocates.
  StorageId StorageAt(int64_t event) const {
    const AllocatorEvent& allocation = events.events[static_cast<size_t>(event)];
    return storages[static_cast<size_t>(allocation.block)];
  }
};

// Returns the requests of a run that repeats the step: `step` is what a
// Simulator of `trace` returns for a plan.
//
// - First the model is put on the device as Module.to does it: modules after
//   those inside of them, each with its parameters and then its buffers, or in
//   descending size; then what else lives before the step, but what follows.
// - The optimizer's state is made when the first optimizer.step begins (a bracket of
//   record_function; without one, before the first operator of the update), or
//   first. A GradScaler's tensors are made before the first operator that uses its
//   scale, averages of weights with the model.
// - Memory that libraries of kernels keep is made with the first matrix product of
//   forward and of backward.
// - An iteration has Trace::microbatches, or the options' most. Until a gradient is there, that of a
//   parameter is the tensor that would be added to it (AccumulateGrad takes it
//   over); the other microbatches add to it. The update follows the last one.
// - A storage that the step makes and does not free takes the place of one that was
//   there before and that the step frees, if their bytes are equal: the next
//   iteration frees it. If there is none it goes at the end of its microbatch.
// - The cache is emptied at the ends of phases, once their memory is freed, if the
//   options say so.
// - Memory of DistributedDataParallel comes and goes as data_parallel.h says. Only the
//   last microbatch of an iteration reduces gradients; the others are in no_sync().
//
// Memory that is freed while an operator runs is free before it asks for any, as
// in the simulation. Requires what RequireDataParallel does, if the options have `ddp`.
TrainingRun MakeTrainingRun(const Trace& trace, const LivedStep& step,
                            const RunOptions& options = {});

// Returns the requests of a run of microbatches of several shapes: `order` has the place in
// `shapes` of each of them. As above, but
//
// - Storages that live from step to step pass from trace to trace (FindLasting). The
//   inputs of a microbatch go when those of the next one are there.
// - The update follows Trace::microbatches microbatches that are none of
//   evaluation. options.iterations and options.microbatches count for nothing.
// - An evaluation's inputs are there before those of the evaluation before it go, and go
//   when training goes on. The inputs of training, its loss and its gradients stay.
//
// Requires that the order is not empty and that the traces are of one model
// (ModelDifference).
TrainingRun MakeTrainingRun(const std::vector<RunShape>& shapes,
                            const std::vector<size_t>& order,
                            const RunOptions& options = {});

}  // namespace acplan::graph
