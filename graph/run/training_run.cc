#include "graph/run/training_run.h"

#include <algorithm>
#include <utility>

#include "graph/run/run_memory.h"
#include "graph/run/shape_parts.h"
#include "graph/run/step_places.h"

namespace acplan::graph {
namespace {

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
        memory_(options.ddp) {}

  // Repeats the only shape.
  TrainingRun Repeated() && {
    Begin(0);
    for (int64_t i = 0; i < options_.iterations; ++i) RunIteration(i);
    return std::move(events().run());
  }

  TrainingRun InOrder(const std::vector<size_t>& order) && {
    const auto first = std::ranges::find_if(
        order, [&](size_t k) { return !shapes_[k].is_evaluation; });
    Begin(first == order.end() ? order.front() : *first);
    events().run().has_equal_iterations = false;
    int64_t microbatches = 0;
    for (size_t k = 0; k < order.size(); ++k) {
      events().moment.iteration = static_cast<int32_t>(k);
      Enter(order[k]);
      if (!parts().is_evaluation) ++microbatches;
      const bool has_update = !parts().is_evaluation &&
                              microbatches % parts().trace.microbatches == 0;
      RunMicrobatch(has_update);
      events().run().iteration_ends.push_back(
          {.events = events().run().events.events.size(), .blocks = {}});
    }
    return std::move(events().run());
  }

 private:
  void Begin(size_t shape) {
    now_ = training_ = shape;
    memory_.Use(parts());
    events().moment.shape = static_cast<int32_t>(shape);
    std::vector<StorageId> model = parts().places.model;
    if (options_.puts_largest_first) {
      std::ranges::stable_sort(model, std::ranges::greater(), [&](StorageId s) {
        return parts().trace.storages[s].bytes;
      });
    }
    for (const StorageId s : model) memory_.Allocate(OriginalLife(s));
    memory_.data_parallel().Construct(parts().trace);
    if (options_.makes_state_first)
      memory_.AllocateMissing(parts().places.state);
  }

  // Makes this the shape of the next microbatch.
  void Enter(size_t shape) {
    const bool evaluates = shapes_[shape].is_evaluation;
    const bool evaluated = parts().is_evaluation;
    events().moment.shape = static_cast<int32_t>(shape);
    events().moment.step = kNone;
    if (evaluated && !evaluates) memory_.FreeAll(TakeInputs(parts()));
    if (!evaluates) {
      old_inputs_ = TakeInputs(shapes_[training_]);
    } else if (evaluated) {
      old_inputs_ = TakeInputs(parts());
    }
    now_ = shape;
    memory_.Use(parts());
    if (evaluates) return;
    if (shape != training_)
      memory_.FreeAll(HandOver(shapes_[training_], parts()));
    training_ = shape;
  }

  void RunIteration(int64_t iteration) {
    events().moment.iteration = static_cast<int32_t>(iteration);
    const int64_t microbatches =
        std::min(parts().trace.microbatches, options_.microbatches);
    for (int64_t m = 0; m < microbatches; ++m) {
      events().moment.microbatch = static_cast<int32_t>(m);
      old_inputs_ =
          options_.renews_inputs ? TakeInputs(parts()) : std::vector<int32_t>();
      RunMicrobatch(m + 1 == microbatches);
    }
    TrainingRun& run = events().run();
    run.iteration_ends.push_back({.events = run.events.events.size(),
                                  .blocks = memory_.LastingBlocks()});
    if (iteration == 0) {
      const size_t count =
          run.events.events.size() * static_cast<size_t>(options_.iterations);
      run.events.events.reserve(count);
      run.moments.reserve(count);
    }
  }

  void RunMicrobatch(bool has_update) {
    events().moment.step = kNone;
    memory_.AllocateMissing(parts().places.inputs);
    memory_.FreeAll(std::exchange(old_inputs_, {}));
    memory_.data_parallel().BeginForward(parts().trace, parts().is_evaluation,
                                         has_update);
    const LivedStep& step = parts().step;
    const StepId steps = has_update || parts().is_evaluation
                             ? step.steps.end_id()
                             : parts().update;
    for (const StepId k : IdRange(StepId{0}, steps)) {
      events().moment.step = k;
      memory_.EndLives(k);
      if (EmptiesCache(options_, parts(), k, firsts_.has_updated)) {
        events().EmptyCache();
      }
      const OperatorId op = step.steps[k].op;
      if (!parts().is_evaluation) BringStates(op);
      for (const LifeId life : parts().lives.begins[k]) memory_.Allocate(life);
      BringLibraries(op);
    }
    events().moment.step = steps;
    memory_.EndLives(steps);
    memory_.EndMicrobatch();
    firsts_.has_updated |= has_update;
  }

  void BringStates(OperatorId op) {
    const StoragePlaces& places = parts().places;
    if (op == places.first_of_scaler) memory_.AllocateMissing(places.scaler);
    if (op == places.first_of_state) memory_.AllocateMissing(places.state);
  }

  void BringLibraries(OperatorId op) {
    const std::vector<StorageId>& libraries = parts().places.of_libraries;
    const bool is_backward = StartOf(op) >= parts().trace.forward_end;
    const size_t expected =
        is_backward ? libraries.size() : (libraries.size() + 1) / 2;
    size_t& count = firsts_.libraries;
    if (count >= expected || !IsMatrixProduct(parts().trace, op)) return;
    for (; count < expected; ++count) {
      memory_.Allocate(OriginalLife(libraries[count]));
    }
  }

  ShapeParts& parts() { return shapes_[now_]; }
  RunEvents& events() { return memory_.events(); }

  RunOptions options_;
  std::vector<ShapeParts> shapes_;
  size_t now_ = 0;       // the shape of the microbatch
  size_t training_ = 0;  // the shape that has the blocks of what lives on
  Firsts firsts_;
  std::vector<int32_t> old_inputs_;  // that go once the next ones are there
  RunMemory memory_;
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
