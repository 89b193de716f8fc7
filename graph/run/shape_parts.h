#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "graph/base/indexed_vector.h"
#include "graph/run/lasting_storages.h"
#include "graph/run/step_places.h"
#include "graph/run/training_run.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"

namespace acplan::graph {

inline constexpr int32_t kNotAllocated = -1;

// The lives that begin and end before each step, the last entry after all.
struct LifeEvents {
  LifeEvents(const LivedStep& step, const Trace& trace);

  IndexedVector<StepId, std::vector<LifeId>> begins, ends;
};

// The results that the forward pass of the model makes.
struct ModelResults {
  explicit ModelResults(const Trace& trace);

  bool Has(StorageId storage) const;
  // Returns whether autograd holds it from the forward pass on.
  bool IsSavedInside(StorageId storage) const;

  std::vector<StorageId> storages = {};
  std::vector<StorageId> saved_inside = {};
  // The step before which the pass ends. No step recomputes before it.
  StepId end = kNone;
};

// The parts of a run that are the same in every step of a shape, and the blocks that the
// shape's storages have.
struct ShapeParts {
  explicit ShapeParts(const RunShape& shape);

  // Returns whether it is that of a storage as the trace has it.
  bool IsOriginal(LifeId life) const {
    return life == OriginalLife(step.lives[life].storage);
  }

  bool IsOfUpdate(const Simulation::Step& ran) const {
    return ran.redone == kNone && StartOf(ran.op) >= trace.backward_end;
  }

  bool IsOfForward(const Simulation::Step& ran) const {
    return ran.redone == kNone && StartOf(ran.op) < trace.forward_end;
  }

  const Trace& trace;
  const LivedStep& step;
  bool is_evaluation;
  StoragePlaces places;
  LastingStorages lasting;
  LifeEvents lives;
  // The gradients that the backward pass has completed before each step, the last entry
  // after all.
  IndexedVector<StepId, std::vector<StorageId>> ready;
  ModelResults results;
  StepId backward = {};  // the step at which the backward pass begins
  StepId update = {};    // the step at which the update begins
  IndexedVector<LifeId, int32_t> block_of_life;
};

// Returns the blocks of the inputs, and takes them from the shape.
std::vector<int32_t> TakeInputs(ShapeParts& shape);

// Hands the blocks of storages that live on from shape to shape. Returns those that have
// no place there.
std::vector<int32_t> HandOver(ShapeParts& from, ShapeParts& to);

// Returns the storages that have a block.
std::vector<std::pair<StorageId, int32_t>> BlocksOf(const ShapeParts& shape);

}  // namespace acplan::graph
