#include "graph/run/training_run.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>
#include <utility>

#include "graph/base/flag.h"

namespace acplan::graph {
namespace {

constexpr int32_t kNoBlock = -1;

// The operators that ask cuBLAS for its handle, and so for its memory.
constexpr std::array<std::string_view, 10> kMatrixProducts = {
    "aten.mm",  "aten.addmm", "aten.bmm",        "aten.baddbmm",
    "aten.mv",  "aten.addmv", "aten._scaled_mm", "aten.linear",
    "aten.dot", "aten.vdot"};

bool IsMatrixProduct(const Trace& trace, OperatorId op) {
  const std::string_view name = trace.operator_names[trace.operators[op].name];
  return std::ranges::find(kMatrixProducts, name.substr(0, name.rfind('.'))) !=
         kMatrixProducts.end();
}

// The part that storages of the trace play in every iteration.
struct StoragePlaces {
  // In the order in which they are put on the device.
  std::vector<StorageId> model, inputs, state, scaler, of_libraries;
  // The operators before which the first update makes the state, and the first
  // step the tensors of a GradScaler; kNone: there is none.
  OperatorId first_of_state = kNone;
  OperatorId first_of_scaler = kNone;
  // The one that lives before the step and whose place it takes, or kNone.
  IndexedVector<StorageId, StorageId> takes_place_of;
  // The gradient that it becomes where there is none, or kNone.
  IndexedVector<StorageId, StorageId> becomes_gradient;
};

std::vector<StorageId> InOrderOfModuleTo(const Trace& trace) {
  // In pre-order, a module's FQN begins with that of the one around it. The
  // root's, its class, is around all.
  std::vector<StorageId> order;
  std::vector<ModuleId> open;
  const auto close = [&] {
    const TraceModule& module = trace.modules[open.back()];
    order.insert(order.end(), module.parameters.begin(),
                 module.parameters.end());
    order.insert(order.end(), module.buffers.begin(), module.buffers.end());
    open.pop_back();
  };
  for (const ModuleId m : trace.modules.ids()) {
    if (trace.modules[m].IsSegment()) continue;
    const std::string_view fqn = trace.modules[m].fqn;
    const auto is_around = [&](ModuleId outer) {
      const std::string_view prefix = trace.modules[outer].fqn;
      return outer == ModuleId{0} ||
             (fqn.size() > prefix.size() && fqn.starts_with(prefix) &&
              fqn[prefix.size()] == '.');
    };
    while (!open.empty() && !is_around(open.back())) close();
    open.push_back(m);
  }
  while (!open.empty()) close();
  return order;
}

// Returns for each storage whether an operator reads or writes to it.
IndexedVector<StorageId, Flag> UsedStorages(const Trace& trace) {
  IndexedVector<StorageId, Flag> is_used(trace.storages.size(), false);
  for (const TraceOperator& op : trace.operators) {
    for (const StorageId s : op.reads) is_used[s] = true;
    for (const StorageId s : op.mutates) is_used[s] = true;
  }
  return is_used;
}

// Adds the storages that an operator reads or writes to.
void AddUsed(const TraceOperator& op, std::set<StorageId>& storages) {
  storages.insert(op.reads.begin(), op.reads.end());
  storages.insert(op.mutates.begin(), op.mutates.end());
}

bool HasState(const Trace& trace, const std::set<StorageId>& storages) {
  return std::ranges::any_of(storages, [&](StorageId s) {
    return trace.storages[s].category == StorageCategory::kOptimizer;
  });
}

// optimizer.step is a bracket of record_function, which clipping before it and
// averages of weights after it are not part of.
struct OptimizerStep {
  OperatorId begin = kNone;  // kNone: there is no bracket that uses state
  std::set<StorageId> storages = {};
};

OptimizerStep FindOptimizerStep(const Trace& trace) {
  OptimizerStep step;
  int depth = 0;
  for (const OperatorId k :
       IdRange(OperatorAt(trace.backward_end), trace.operators.end_id())) {
    const TraceOperator& op = trace.operators[k];
    const std::string_view name = trace.operator_names[op.name];
    if (name.starts_with("profiler._record_function_enter")) {
      if (depth++ == 0) step = {.begin = k};
    } else if (name.starts_with("profiler._record_function_exit")) {
      if (--depth == 0 && HasState(trace, step.storages)) return step;
    } else if (depth > 0) {
      AddUsed(op, step.storages);
    }
  }
  return {};
}

// Returns the first operator of forward or backward that uses state, which is a
// GradScaler's scale; kNone: there is none.
OperatorId FirstUseOfScale(const Trace& trace) {
  for (const OperatorId k : OperatorsIn(0, trace.backward_end)) {
    std::set<StorageId> storages;
    AddUsed(trace.operators[k], storages);
    if (HasState(trace, storages)) return k;
  }
  return kNone;
}

// Tells state of optimizer.step from a GradScaler's tensors (its scale, and what is
// made with it) and from averages of weights, which are made with the model.
void FindState(const Trace& trace, StoragePlaces& places) {
  const OptimizerStep step = FindOptimizerStep(trace);
  places.first_of_state = step.begin;
  places.first_of_scaler = FirstUseOfScale(trace);
  std::set<StorageId> scale;
  if (places.first_of_scaler != kNone) {
    AddUsed(trace.operators[places.first_of_scaler], scale);
  }
  bool is_after_scale = false;
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.category != StorageCategory::kOptimizer ||
        storage.born != kNone || storage.bytes == 0) {
      continue;
    }
    const bool is_of_scaler =
        scale.contains(s) || (is_after_scale && !step.storages.contains(s));
    is_after_scale = scale.contains(s);
    const bool is_state = step.begin == kNone || step.storages.contains(s);
    (is_of_scaler ? places.scaler
     : is_state   ? places.state
                  : places.model)
        .push_back(s);
  }
}

void FindStart(const Trace& trace, StoragePlaces& places) {
  IndexedVector<StorageId, Flag> is_placed(trace.storages.size(), false);
  for (const StorageId s : InOrderOfModuleTo(trace)) {
    if (is_placed[s] || trace.storages[s].born != kNone) continue;
    is_placed[s] = true;
    places.model.push_back(s);
  }
  const IndexedVector<StorageId, Flag> is_used = UsedStorages(trace);
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born != kNone || is_placed[s] || storage.bytes == 0) continue;
    switch (storage.category) {
      case StorageCategory::kOptimizer:
        break;  // FindState
      case StorageCategory::kInput:
        places.inputs.push_back(s);
        break;
      case StorageCategory::kGradient:
        break;  // its first microbatch makes it
      case StorageCategory::kBuffer:
        (is_used[s] ? places.model : places.of_libraries).push_back(s);
        break;
      default:
        // The rest is left by earlier steps, and not there yet.
        if (storage.freed == kNever) places.model.push_back(s);
    }
  }
}

void FindTakenPlaces(const Trace& trace, StoragePlaces& places) {
  places.takes_place_of.assign(trace.storages.size(), kNone);
  std::multiset<std::pair<int64_t, StorageId>> freed;  // bytes, storage
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    const bool is_left = storage.born == kNone && storage.freed != kNever &&
                         storage.category != StorageCategory::kInput;
    if (is_left) freed.insert({storage.bytes, s});
  }
  for (const StorageId s : trace.storages.ids()) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born == kNone || storage.freed != kNever) continue;
    const auto place = freed.lower_bound({storage.bytes, StorageId{0}});
    if (place == freed.end() || place->first != storage.bytes) continue;
    places.takes_place_of[s] = place->second;
    freed.erase(place);
  }
}

void FindAddedGradients(const Trace& trace, StoragePlaces& places) {
  places.becomes_gradient.assign(trace.storages.size(), kNone);
  IndexedVector<StorageId, Flag> is_found(trace.storages.size(), false);
  for (const OperatorId k :
       OperatorsIn(trace.forward_end, trace.backward_end)) {
    const TraceOperator& op = trace.operators[k];
    for (const StorageId gradient : op.mutates) {
      const TraceStorage& storage = trace.storages[gradient];
      const bool is_awaited = storage.born == kNone && !is_found[gradient] &&
                              storage.category == StorageCategory::kGradient;
      if (!is_awaited) continue;
      for (const StorageId read : op.reads) {
        const TraceStorage& term = trace.storages[read];
        if (term.IsOlderThan(trace.forward_end) ||
            term.bytes != storage.bytes ||
            places.becomes_gradient[read] != kNone) {
          continue;
        }
        places.becomes_gradient[read] = gradient;
        is_found[gradient] = true;
        break;
      }
    }
  }
}

StoragePlaces FindPlaces(const Trace& trace) {
  StoragePlaces places;
  FindStart(trace, places);
  FindState(trace, places);
  FindTakenPlaces(trace, places);
  FindAddedGradients(trace, places);
  return places;
}

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

// The parts of a run that are the same in every iteration.
struct RunParts {
  RunParts(const Trace& of_trace, const LivedStep& of_step,
           const RunOptions& of_run)
      : trace(of_trace),
        step(of_step),
        options(of_run),
        places(FindPlaces(of_trace)),
        lives(of_step, of_trace) {
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

  bool IsOfUpdate(const Simulation::Step& ran) const {
    return ran.redone == kNone && StartOf(ran.op) >= trace.backward_end;
  }

  bool IsOfForward(const Simulation::Step& ran) const {
    return ran.redone == kNone && StartOf(ran.op) < trace.forward_end;
  }

  const Trace& trace;
  const LivedStep& step;
  RunOptions options;
  StoragePlaces places;
  LifeEvents lives;
  StepId backward = {};  // the step at which the backward pass begins
  StepId update = {};    // the step at which the update begins
};

class RunBuilder {
 public:
  explicit RunBuilder(RunParts parts)
      : parts_(std::move(parts)),
        block_of_life_(parts_.step.lives.size(), kNoBlock) {}

  TrainingRun Build() && {
    if (parts_.options.puts_largest_first) {
      std::ranges::stable_sort(
          parts_.places.model, std::ranges::greater(),
          [&](StorageId s) { return parts_.trace.storages[s].bytes; });
    }
    for (const StorageId s : parts_.places.model) Allocate(OriginalLife(s));
    if (parts_.options.makes_state_first) AllocateMissing(parts_.places.state);
    for (int64_t i = 0; i < parts_.options.iterations; ++i) RunIteration(i);
    return std::move(run_);
  }

 private:
  void RunIteration(int64_t iteration) {
    moment_.iteration = static_cast<int32_t>(iteration);
    const int64_t microbatches =
        std::min(parts_.trace.microbatches, parts_.options.microbatches);
    for (int64_t m = 0; m < microbatches; ++m) {
      moment_.microbatch = static_cast<int32_t>(m);
      RunMicrobatch(m + 1 == microbatches);
    }
    IterationEnd end{.events = run_.events.events.size(), .blocks = {}};
    for (const StorageId s : parts_.trace.storages.ids()) {
      const int32_t block = block_of_life_[OriginalLife(s)];
      if (block != kNoBlock) end.blocks.emplace_back(s, block);
    }
    run_.iteration_ends.push_back(std::move(end));
    if (iteration == 0) {
      const size_t events = run_.events.events.size() *
                            static_cast<size_t>(parts_.options.iterations);
      run_.events.events.reserve(events);
      run_.moments.reserve(events);
    }
  }

  void RunMicrobatch(bool is_last) {
    moment_.step = kNone;
    BringInputs();
    const StepId steps = is_last ? parts_.step.steps.end_id() : parts_.update;
    for (const StepId k : IdRange(StepId{0}, steps)) {
      moment_.step = k;
      for (const LifeId life : parts_.lives.ends[k]) End(life);
      if (EmptiesCacheBefore(k)) {
        Add({.kind = AllocatorEvent::Kind::kEmptyCache});
      }
      const OperatorId op = parts_.step.steps[k].op;
      if (op == parts_.places.first_of_scaler) {
        AllocateMissing(parts_.places.scaler);
      }
      if (op == parts_.places.first_of_state) {
        AllocateMissing(parts_.places.state);
      }
      for (const LifeId life : parts_.lives.begins[k]) Allocate(life);
      BringLibraries(op);
    }
    moment_.step = steps;
    for (const LifeId life : parts_.lives.ends[steps]) End(life);
    EndMicrobatch();
  }

  bool EmptiesCacheBefore(StepId k) const {
    const RunOptions& options = parts_.options;
    if (k == parts_.update) {
      return options.empties_cache_before_update ||
             (options.empties_cache_before_first_update &&
              moment_.iteration == 0);
    }
    return k == parts_.backward && options.empties_cache_after_forward;
  }

  void BringInputs() {
    if (!parts_.options.renews_inputs)
      return AllocateMissing(parts_.places.inputs);
    std::vector<int32_t> old;
    for (const StorageId s : parts_.places.inputs) {
      const LifeId life = OriginalLife(s);
      if (block_of_life_[life] != kNoBlock) old.push_back(block_of_life_[life]);
      Allocate(life);
    }
    for (const int32_t block : old) Free(block);
  }

  void BringLibraries(OperatorId op) {
    const bool is_backward = StartOf(op) >= parts_.trace.forward_end;
    const size_t expected = is_backward
                                ? parts_.places.of_libraries.size()
                                : (parts_.places.of_libraries.size() + 1) / 2;
    if (libraries_ >= expected || !IsMatrixProduct(parts_.trace, op)) return;
    for (; libraries_ < expected; ++libraries_) {
      Allocate(OriginalLife(parts_.places.of_libraries[libraries_]));
    }
  }

  // Returns whether it is that of a storage as the trace has it.
  bool IsOriginal(LifeId life) const {
    return life == OriginalLife(parts_.step.lives[life].storage);
  }

  // A life's memory is freed, or goes on under another name.
  void End(LifeId life) {
    const StorageId storage = parts_.step.lives[life].storage;
    HandOn(life, IsOriginal(life) ? parts_.places.becomes_gradient[storage]
                                  : StorageId(kNone));
  }

  // Frees the memory of a life, or gives it to a storage that has none.
  void HandOn(LifeId life, StorageId heir) {
    const int32_t block = std::exchange(block_of_life_[life], kNoBlock);
    if (block == kNoBlock) return;
    if (heir != kNone && block_of_life_[OriginalLife(heir)] == kNoBlock) {
      block_of_life_[OriginalLife(heir)] = block;
    } else {
      Free(block);
    }
  }

  // Frees what the microbatch made and did not free, or hands it on.
  void EndMicrobatch() {
    for (const LifeId life : parts_.step.lives.ids()) {
      const StorageId storage = parts_.step.lives[life].storage;
      if (!IsOriginal(life)) {
        HandOn(life, kNone);
      } else if (parts_.trace.storages[storage].born != kNone) {
        const StorageId place = parts_.places.takes_place_of[storage];
        HandOn(life, place != kNone ? place
                                    : parts_.places.becomes_gradient[storage]);
      }
    }
  }

  void AllocateMissing(const std::vector<StorageId>& storages) {
    for (const StorageId s : storages) {
      const LifeId life = OriginalLife(s);
      if (block_of_life_[life] == kNoBlock) Allocate(life);
    }
  }

  void Allocate(LifeId life) {
    const StorageId storage = parts_.step.lives[life].storage;
    const int32_t block = static_cast<int32_t>(run_.storages.size());
    run_.storages.push_back(storage);
    run_.events.block_ids.push_back(block);
    block_of_life_[life] = block;
    Add({.kind = AllocatorEvent::Kind::kAllocate,
         .block = block,
         .bytes = parts_.trace.storages[storage].bytes});
  }

  void Free(int32_t block) {
    Add({.kind = AllocatorEvent::Kind::kFree, .block = block});
  }

  void Add(const AllocatorEvent& event) {
    run_.events.events.push_back(event);
    run_.moments.push_back(moment_);
  }

  RunParts parts_;
  size_t libraries_ = 0;  // how many of them are there
  IndexedVector<LifeId, int32_t> block_of_life_;
  RunMoment moment_;
  TrainingRun run_;
};

}  // namespace

TrainingRun MakeTrainingRun(const Trace& trace, const LivedStep& step,
                            const RunOptions& options) {
  return RunBuilder(RunParts(trace, step, options)).Build();
}

}  // namespace acplan::graph
