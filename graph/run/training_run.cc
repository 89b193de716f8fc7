#include "graph/run/training_run.h"

#include <algorithm>
#include <utility>

#include "graph/run/lasting_storages.h"
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

// Returns the storage that gets the memory of one that a microbatch made and did not free.
StorageId HeirAtTheEnd(const ShapeParts& shape, StorageId storage) {
  if (shape.is_evaluation) return StorageId(kNone);
  const StorageId place = shape.places.takes_place_of[storage];
  return place != kNone ? place : shape.places.becomes_gradient[storage];
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
      : options_(options), shapes_(shapes.begin(), shapes.end()) {}

  // Repeats the only shape.
  TrainingRun Repeated() && {
    Begin(0);
    for (int64_t i = 0; i < options_.iterations; ++i) RunIteration(i);
    return std::move(run_);
  }

  TrainingRun InOrder(const std::vector<size_t>& order) && {
    const auto first = std::ranges::find_if(
        order, [&](size_t k) { return !shapes_[k].is_evaluation; });
    Begin(first == order.end() ? order.front() : *first);
    run_.has_equal_iterations = false;
    int64_t microbatches = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      moment_.iteration = static_cast<int32_t>(k);
      Enter(order[k]);
      if (!parts().is_evaluation) ++microbatches;
      const bool has_update = !parts().is_evaluation &&
                              microbatches % parts().trace.microbatches == 0;
      RunMicrobatch(has_update);
      run_.iteration_ends.push_back(
          {.events = run_.events.events.size(), .blocks = {}});
    }
    return std::move(run_);
  }

 private:
  void Begin(size_t shape) {
    now_ = training_ = shape;
    moment_.shape = static_cast<int32_t>(shape);
    std::vector<StorageId> model = parts().places.model;
    if (options_.puts_largest_first) {
      std::ranges::stable_sort(model, std::ranges::greater(), [&](StorageId s) {
        return parts().trace.storages[s].bytes;
      });
    }
    for (const StorageId s : model) Allocate(OriginalLife(s));
    if (options_.makes_state_first) AllocateMissing(parts().places.state);
  }

  // Makes this the shape of the next microbatch.
  void Enter(size_t shape) {
    const bool evaluates = shapes_[shape].is_evaluation;
    const bool evaluated = parts().is_evaluation;
    moment_.shape = static_cast<int32_t>(shape);
    moment_.step = kNone;
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
    moment_.iteration = static_cast<int32_t>(iteration);
    const int64_t microbatches =
        std::min(parts().trace.microbatches, options_.microbatches);
    for (int64_t m = 0; m < microbatches; ++m) {
      moment_.microbatch = static_cast<int32_t>(m);
      old_inputs_ =
          options_.renews_inputs ? TakeInputs(parts()) : std::vector<int32_t>();
      RunMicrobatch(m + 1 == microbatches);
    }
    run_.iteration_ends.push_back(
        {.events = run_.events.events.size(), .blocks = BlocksOf(parts())});
    if (iteration == 0) {
      const size_t events =
          run_.events.events.size() * static_cast<size_t>(options_.iterations);
      run_.events.events.reserve(events);
      run_.moments.reserve(events);
    }
  }

  void RunMicrobatch(bool has_update) {
    moment_.step = kNone;
    AllocateMissing(parts().places.inputs);
    FreeAll(std::exchange(old_inputs_, {}));
    const LivedStep& step = parts().step;
    const StepId steps = has_update || parts().is_evaluation
                             ? step.steps.end_id()
                             : parts().update;
    for (const StepId k : IdRange(StepId{0}, steps)) {
      moment_.step = k;
      for (const LifeId life : parts().lives.ends[k]) End(life);
      if (EmptiesCache(options_, parts(), k, firsts_.has_updated)) {
        Add({.kind = AllocatorEvent::Kind::kEmptyCache});
      }
      const OperatorId op = step.steps[k].op;
      if (!parts().is_evaluation) BringStates(op);
      for (const LifeId life : parts().lives.begins[k]) Allocate(life);
      BringLibraries(op);
    }
    moment_.step = steps;
    for (const LifeId life : parts().lives.ends[steps]) End(life);
    EndMicrobatch();
    firsts_.has_updated |= has_update;
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
    const bool may_go_on = parts().IsOriginal(life) && !parts().is_evaluation;
    HandOn(life, may_go_on ? parts().places.becomes_gradient[storage]
                           : StorageId(kNone));
  }

  // Frees the memory of a life, or gives it to a storage that has none.
  void HandOn(LifeId life, StorageId heir) {
    const int32_t block = std::exchange(BlockOf(life), kNoBlock);
    if (block == kNoBlock) return;
    if (heir != kNone && BlockOf(OriginalLife(heir)) == kNoBlock) {
      BlockOf(OriginalLife(heir)) = block;
    } else {
      Free(block);
    }
  }

  // Frees what the microbatch made and did not free, or hands it on.
  void EndMicrobatch() {
    for (const LifeId life : parts().step.lives.ids()) {
      const StorageId storage = parts().step.lives[life].storage;
      if (!parts().IsOriginal(life)) {
        HandOn(life, kNone);
      } else if (parts().trace.storages[storage].born != kNone) {
        HandOn(life, HeirAtTheEnd(parts(), storage));
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
    const int32_t block = static_cast<int32_t>(run_.storages.size());
    run_.storages.push_back(storage);
    run_.events.block_ids.push_back(block);
    BlockOf(life) = block;
    Add({.kind = AllocatorEvent::Kind::kAllocate,
         .block = block,
         .bytes = parts().trace.storages[storage].bytes});
  }

  void Free(int32_t block) {
    Add({.kind = AllocatorEvent::Kind::kFree, .block = block});
  }

  void FreeAll(const std::vector<int32_t>& blocks) {
    for (const int32_t block : blocks) Free(block);
  }

  void Add(const AllocatorEvent& event) {
    run_.events.events.push_back(event);
    run_.moments.push_back(moment_);
  }

  ShapeParts& parts() { return shapes_[now_]; }
  int32_t& BlockOf(LifeId life) { return parts().block_of_life[life]; }

  RunOptions options_;
  std::vector<ShapeParts> shapes_;
  size_t now_ = 0;       // the shape of the microbatch
  size_t training_ = 0;  // the shape that has the blocks of what lives on
  Firsts firsts_;
  std::vector<int32_t> old_inputs_;  // that go once the next ones are there
  RunMoment moment_;
  TrainingRun run_;
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
