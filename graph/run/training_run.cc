#include "graph/run/training_run.h"

#include <algorithm>
#include <utility>

#include "graph/run/data_parallel.h"
#include "graph/run/lasting_storages.h"
#include "graph/run/run_events.h"
#include "graph/run/step_places.h"

namespace acplan::graph {
namespace {

constexpr int32_t kNoBlock = -1;

// The lives that begin and end before each step, the last entry after all.
struct LifeEvents {
  LifeEvents(const LivedStep& step, const Trace& trace)
      : begins(step.steps.size() + 1), ends(step.steps.size() + 1) {
    const StepId steps = step.steps.end_id();
    for (const LifeId k : step.lives.ids()) {
      const Life& life = step.lives[k];
      const TraceStorage& storage = trace.storages[life.storage];
      const bool is_original = k == OriginalLife(life.storage);
      if (storage.bytes == 0 || life.begin >= steps) continue;
      const bool is_there_before = is_original && storage.born == kNone;
      if (!is_there_before) begins[life.begin].push_back(k);
      const bool outlives = is_original && storage.freed == kNever;
      if (outlives && life.end >= steps) continue;
      const StepId first_end = is_there_before ? StepId{0} : Next(life.begin);
      ends[std::clamp(life.end, first_end, steps)].push_back(k);
    }
  }

  IndexedVector<StepId, std::vector<LifeId>> begins, ends;
};

// Returns the gradients that the backward pass has completed before each step, the last entry
// after all.
IndexedVector<StepId, std::vector<StorageId>> ReadyGradients(
    const LivedStep& step, const Trace& trace) {
  IndexedVector<StepId, std::vector<StorageId>> ready(step.steps.size() + 1);
  if (!trace.model_tensors) return ready;
  std::vector<StepId> step_at(trace.operators.size() + 1, StepId{0});
  for (const StepId k : step.steps.ids()) {
    const Simulation::Step& ran = step.steps[k];
    if (ran.redone == kNone) step_at[EndOf(ran.op)] = Next(k);
  }
  for (const ReadyGradient& gradient : trace.model_tensors->gradients) {
    ready[step_at[gradient.ready]].push_back(gradient.storage);
  }
  return ready;
}

// The results that the forward pass of the model makes.
struct ModelResults {
  explicit ModelResults(const Trace& trace) {
    const auto root = std::ranges::find(trace.calls, ModuleId{0},
                                        &TraceCall::module);
    if (root == trace.calls.end()) return;
    end = StepId{root->end};
    for (const StorageId s : root->outputs) {
      const TraceStorage& storage = trace.storages[s];
      if (storage.born != kNone && storage.bytes > 0) storages.push_back(s);
    }
    for (const SavedTensor& saved : trace.saved) {
      const bool is_inside = saved.packed <= root->end && Has(saved.storage);
      if (is_inside) saved_inside.push_back(saved.storage);
    }
  }

  bool Has(StorageId storage) const {
    return std::ranges::find(storages, storage) != storages.end();
  }
  bool IsSavedInside(StorageId storage) const {
    return std::ranges::find(saved_inside, storage) != saved_inside.end();
  }

  std::vector<StorageId> storages = {};
  std::vector<StorageId> saved_inside = {};  // autograd holds them from then on
  StepId end = kNone;  // the step before which the pass ends; no step recomputes there
};

// The parts of a run that are the same in every step of a shape, and the blocks that the
// shape's storages have.
struct ShapeParts {
  explicit ShapeParts(const RunShape& shape)
      : trace(*shape.trace),
        step(*shape.step),
        is_evaluation(shape.is_evaluation),
        places(FindPlaces(trace)),
        lasting(FindLasting(trace, places)),
        lives(step, trace),
        ready(ReadyGradients(step, trace)),
        results(trace),
        block_of_life(step.lives.size(), kNoBlock) {
    while (update < step.steps.end_id() && !IsOfUpdate(step.steps[update])) {
      update = Next(update);
    }
    while (backward < update && IsOfForward(step.steps[backward])) {
      backward = Next(backward);
    }
    if (places.first_of_state == kNone && update < step.steps.end_id()) {
      places.first_of_state = step.steps[update].op;
    }
  }

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
  IndexedVector<StepId, std::vector<StorageId>> ready;
  ModelResults results;
  StepId backward = {};  // the step at which the backward pass begins
  StepId update = {};    // the step at which the update begins
  IndexedVector<LifeId, int32_t> block_of_life;
};

// Returns the blocks of the inputs, and takes them from the shape.
std::vector<int32_t> TakeInputs(ShapeParts& shape) {
  std::vector<int32_t> blocks;
  for (const StorageId s : shape.places.inputs) {
    const int32_t block =
        std::exchange(shape.block_of_life[OriginalLife(s)], kNoBlock);
    if (block != kNoBlock) blocks.push_back(block);
  }
  return blocks;
}

// Hands the blocks of storages that live on from shape to shape. Returns those that have
// no place there.
std::vector<int32_t> HandOver(ShapeParts& from, ShapeParts& to) {
  std::vector<int32_t> without_place;
  const auto hand = [&](const std::vector<StorageId>& of_from,
                        const std::vector<StorageId>& of_to) {
    for (size_t k = 0; k < of_from.size(); ++k) {
      const int32_t block =
          std::exchange(from.block_of_life[OriginalLife(of_from[k])], kNoBlock);
      if (block == kNoBlock) continue;
      if (k < of_to.size()) {
        to.block_of_life[OriginalLife(of_to[k])] = block;
      } else {
        without_place.push_back(block);
      }
    }
  };
  hand(from.lasting.states, to.lasting.states);
  hand(from.lasting.remnants, to.lasting.remnants);
  return without_place;
}

std::vector<std::pair<StorageId, int32_t>> BlocksOf(const ShapeParts& shape) {
  std::vector<std::pair<StorageId, int32_t>> blocks;
  for (const StorageId s : shape.trace.storages.ids()) {
    const int32_t block = shape.block_of_life[OriginalLife(s)];
    if (block != kNoBlock) blocks.emplace_back(s, block);
  }
  return blocks;
}

// Returns whether the program empties the cache before this step.
bool EmptiesCache(const RunOptions& options, const ShapeParts& shape, StepId k,
                  bool has_updated) {
  if (shape.is_evaluation) return false;
  if (k == shape.update) {
    return options.empties_cache_before_update ||
           (options.empties_cache_before_first_update && !has_updated);
  }
  return k == shape.backward && options.empties_cache_after_forward;
}

// The things that a run does once.
struct Firsts {
  size_t libraries = 0;  // how many of their storages are there
  bool has_updated = false;
};

class RunBuilder {
 public:
  RunBuilder(const std::vector<RunShape>& shapes, const RunOptions& options)
      : options_(options),
        shapes_(shapes.begin(), shapes.end()),
        data_parallel_(options.ddp, events_) {}

  // Repeats the only shape.
  TrainingRun Repeated() && {
    Begin(0);
    for (int64_t i = 0; i < options_.iterations; ++i) RunIteration(i);
    return std::move(events_.run());
  }

  TrainingRun InOrder(const std::vector<size_t>& order) && {
    const auto first = std::ranges::find_if(
        order, [&](size_t k) { return !shapes_[k].is_evaluation; });
    Begin(first == order.end() ? order.front() : *first);
    events_.run().has_equal_iterations = false;
    int64_t microbatches = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      events_.moment.iteration = static_cast<int32_t>(k);
      Enter(order[k]);
      if (!parts().is_evaluation) ++microbatches;
      const bool has_update = !parts().is_evaluation &&
                              microbatches % parts().trace.microbatches == 0;
      RunMicrobatch(has_update);
      events_.run().iteration_ends.push_back(
          {.events = events_.run().events.events.size(), .blocks = {}});
    }
    return std::move(events_.run());
  }

 private:
  void Begin(size_t shape) {
    now_ = training_ = shape;
    events_.moment.shape = static_cast<int32_t>(shape);
    std::vector<StorageId> model = parts().places.model;
    if (options_.puts_largest_first) {
      std::ranges::stable_sort(model, std::ranges::greater(), [&](StorageId s) {
        return parts().trace.storages[s].bytes;
      });
    }
    for (const StorageId s : model) Allocate(OriginalLife(s));
    data_parallel_.Construct(parts().trace);
    if (options_.makes_state_first) AllocateMissing(parts().places.state);
  }

  // Makes this the shape of the next microbatch.
  void Enter(size_t shape) {
    const bool evaluates = shapes_[shape].is_evaluation;
    const bool evaluated = parts().is_evaluation;
    events_.moment.shape = static_cast<int32_t>(shape);
    events_.moment.step = kNone;
    if (evaluated && !evaluates) FreeAll(TakeInputs(parts()));
    if (!evaluates) {
      old_inputs_ = TakeInputs(shapes_[training_]);
    } else if (evaluated) {
      old_inputs_ = TakeInputs(parts());
    }
    now_ = shape;
    if (evaluates) return;
    if (shape != training_) FreeAll(HandOver(shapes_[training_], parts()));
    training_ = shape;
  }

  void RunIteration(int64_t iteration) {
    events_.moment.iteration = static_cast<int32_t>(iteration);
    const int64_t microbatches =
        std::min(parts().trace.microbatches, options_.microbatches);
    for (int64_t m = 0; m < microbatches; ++m) {
      events_.moment.microbatch = static_cast<int32_t>(m);
      old_inputs_ =
          options_.renews_inputs ? TakeInputs(parts()) : std::vector<int32_t>();
      RunMicrobatch(m + 1 == microbatches);
    }
    TrainingRun& run = events_.run();
    run.iteration_ends.push_back(
        {.events = run.events.events.size(), .blocks = LastingBlocks()});
    if (iteration == 0) {
      const size_t events = run.events.events.size() *
                            static_cast<size_t>(options_.iterations);
      run.events.events.reserve(events);
      run.moments.reserve(events);
    }
  }

  void RunMicrobatch(bool has_update) {
    events_.moment.step = kNone;
    AllocateMissing(parts().places.inputs);
    FreeAll(std::exchange(old_inputs_, {}));
    data_parallel_.BeginForward(parts().trace, parts().is_evaluation,
                                has_update);
    const LivedStep& step = parts().step;
    const StepId steps = has_update || parts().is_evaluation
                             ? step.steps.end_id()
                             : parts().update;
    for (const StepId k : IdRange(StepId{0}, steps)) {
      events_.moment.step = k;
      FreeReadyGradients(k);
      EndLives(k);
      if (EmptiesCache(options_, parts(), k, firsts_.has_updated)) {
        events_.EmptyCache();
      }
      const OperatorId op = step.steps[k].op;
      if (!parts().is_evaluation) BringStates(op);
      for (const LifeId life : parts().lives.begins[k]) Allocate(life);
      BringLibraries(op);
    }
    events_.moment.step = steps;
    FreeReadyGradients(steps);
    EndLives(steps);
    EndMicrobatch();
    data_parallel_.EndMicrobatch();
    firsts_.has_updated |= has_update;
  }

  // Ends the lives that end before a step. DistributedDataParallel copies the results of
  // the model before its caller can let go of them.
  void EndLives(StepId k) {
    const ModelResults& results = parts().results;
    const std::vector<LifeId>& ends = parts().lives.ends[k];
    const bool copies = k == results.end && data_parallel_.CopiesResults();
    const auto is_result = [&](LifeId life) {
      return copies && results.Has(parts().step.lives[life].storage);
    };
    data_parallel_.FreeCopies(k);
    for (const LifeId life : ends) {
      if (!is_result(life)) End(life);
    }
    if (!copies) return;
    CopyResults(results);
    for (const LifeId life : ends) {
      if (is_result(life)) End(life);
    }
  }

  // A copy takes the place of a result, unless autograd holds the result itself.
  void CopyResults(const ModelResults& results) {
    std::vector<int32_t> originals;
    for (const StorageId s : results.storages) {
      int32_t& block = BlockOf(OriginalLife(s));
      if (block == kNoBlock) continue;
      const TraceStorage& storage = parts().trace.storages[s];
      const int32_t copy = events_.Allocate(s, storage.bytes);
      if (results.IsSavedInside(s)) {
        data_parallel_.AddCopy(copy, StepId{storage.scope_end});
      } else {
        originals.push_back(std::exchange(block, copy));
      }
    }
    FreeAll(originals);
  }

  // Frees the memory of gradients that from here on are views of buckets.
  void FreeReadyGradients(StepId k) {
    if (!data_parallel_.HoldsGradients()) return;
    if (!data_parallel_.DelaysReduction()) {
      FreeGradients(k, Next(k));
    } else if (k == parts().update) {
      FreeGradients(StepId{0}, Next(k));
    }
  }

  void FreeGradients(StepId first, StepId end) {
    for (const StepId k : IdRange(first, end)) {
      for (const StorageId gradient : parts().ready[k]) {
        HandOn(OriginalLife(gradient), kNone);
      }
    }
  }

  void BringStates(OperatorId op) {
    const StoragePlaces& places = parts().places;
    if (op == places.first_of_scaler) AllocateMissing(places.scaler);
    if (op == places.first_of_state) AllocateMissing(places.state);
  }

  void BringLibraries(OperatorId op) {
    const std::vector<StorageId>& libraries = parts().places.of_libraries;
    const bool is_backward = StartOf(op) >= parts().trace.forward_end;
    const size_t expected =
        is_backward ? libraries.size() : (libraries.size() + 1) / 2;
    size_t& count = firsts_.libraries;
    if (count >= expected || !IsMatrixProduct(parts().trace, op)) return;
    for (; count < expected; ++count) {
      Allocate(OriginalLife(libraries[count]));
    }
  }

  // A life's memory is freed, or goes on under another name.
  void End(LifeId life) {
    const StorageId storage = parts().step.lives[life].storage;
    HandOn(life, parts().IsOriginal(life) ? GradientOf(storage)
                                          : StorageId(kNone));
  }

  // Returns the gradient that a storage becomes where there is none, or kNone.
  StorageId GradientOf(StorageId storage) {
    if (parts().is_evaluation || data_parallel_.HoldsGradients()) {
      return kNone;
    }
    return parts().places.becomes_gradient[storage];
  }

  // Returns the storage that gets the memory of one that a microbatch made and did not
  // free.
  StorageId HeirAtTheEnd(StorageId storage) {
    if (parts().is_evaluation) return kNone;
    const StorageId place = parts().places.takes_place_of[storage];
    return place != kNone ? place : GradientOf(storage);
  }

  // Frees the memory of a life, or gives it to a storage that has none.
  void HandOn(LifeId life, StorageId heir) {
    const int32_t block = std::exchange(BlockOf(life), kNoBlock);
    if (block == kNoBlock) return;
    if (heir != kNone && BlockOf(OriginalLife(heir)) == kNoBlock) {
      BlockOf(OriginalLife(heir)) = block;
    } else {
      events_.Free(block);
    }
  }

  // Frees what the microbatch made and did not free, or hands it on.
  void EndMicrobatch() {
    for (const LifeId life : parts().step.lives.ids()) {
      const StorageId storage = parts().step.lives[life].storage;
      if (!parts().IsOriginal(life)) {
        HandOn(life, kNone);
      } else if (parts().trace.storages[storage].born != kNone) {
        HandOn(life, HeirAtTheEnd(storage));
      }
    }
  }

  void AllocateMissing(const std::vector<StorageId>& storages) {
    for (const StorageId s : storages) {
      const LifeId life = OriginalLife(s);
      if (BlockOf(life) == kNoBlock) Allocate(life);
    }
  }

  void Allocate(LifeId life) {
    const StorageId storage = parts().step.lives[life].storage;
    BlockOf(life) =
        events_.Allocate(storage, parts().trace.storages[storage].bytes);
  }

  void FreeAll(const std::vector<int32_t>& blocks) {
    for (const int32_t block : blocks) events_.Free(block);
  }

  std::vector<std::pair<StorageId, int32_t>> LastingBlocks() {
    auto blocks = BlocksOf(parts());
    const auto storages = static_cast<int32_t>(parts().trace.storages.size());
    for (const auto& [number, block] : data_parallel_.Blocks()) {
      blocks.emplace_back(IdAt<StorageId>(storages + number), block);
    }
    return blocks;
  }

  ShapeParts& parts() { return shapes_[now_]; }
  int32_t& BlockOf(LifeId life) { return parts().block_of_life[life]; }

  RunOptions options_;
  std::vector<ShapeParts> shapes_;
  size_t now_ = 0;       // the shape of the microbatch
  size_t training_ = 0;  // the shape that has the blocks of what lives on
  Firsts firsts_;
  std::vector<int32_t> old_inputs_;  // that go once the next ones are there
  RunEvents events_;
  DataParallel data_parallel_;
};

}  // namespace

TrainingRun MakeTrainingRun(const Trace& trace, const LivedStep& step,
                            const RunOptions& options) {
  return RunBuilder({{.trace = &trace, .step = &step}}, options).Repeated();
}

TrainingRun MakeTrainingRun(const std::vector<RunShape>& shapes,
                            const std::vector<size_t>& order,
                            const RunOptions& options) {
  return RunBuilder(shapes, options).InOrder(order);
}

}  // namespace acplan::graph
