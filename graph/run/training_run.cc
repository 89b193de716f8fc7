#include "graph/run/training_run.h"

#include <algorithm>
#include <array>
#include <set>
#include <string_view>

namespace acplan::graph {
namespace {

constexpr int32_t kNoBlock = -1;

// The operators that ask cuBLAS for its handle, and so for its memory.
constexpr std::array<std::string_view, 10> kMatrixProducts = {
    "aten.mm",  "aten.addmm", "aten.bmm",        "aten.baddbmm",
    "aten.mv",  "aten.addmv", "aten._scaled_mm", "aten.linear",
    "aten.dot", "aten.vdot"};

bool IsMatrixProduct(const Trace& trace, int32_t op) {
  const std::string_view name = trace.operator_names[trace.operators[op].name];
  return std::ranges::find(kMatrixProducts, name.substr(0, name.rfind('.'))) !=
         kMatrixProducts.end();
}

// The part that storages of the trace play in every iteration.
struct StoragePlaces {
  // In the order in which they are put on the device.
  std::vector<int32_t> model, inputs, state, of_libraries;
  // Indexed by storage: the one that lives before the step and whose place it
  // takes, or -1.
  std::vector<int32_t> takes_place_of;
  // Indexed by storage: the gradient that it becomes where there is none, or -1.
  std::vector<int32_t> becomes_gradient;
};

std::vector<int32_t> InOrderOfModuleTo(const Trace& trace) {
  // In pre-order, a module's FQN begins with that of the one around it. The
  // root's, its class, is around all.
  std::vector<int32_t> order;
  std::vector<size_t> open;
  const auto close = [&] {
    const TraceModule& module = trace.modules[open.back()];
    order.insert(order.end(), module.parameters.begin(),
                 module.parameters.end());
    order.insert(order.end(), module.buffers.begin(), module.buffers.end());
    open.pop_back();
  };
  for (size_t m = 0; m < trace.modules.size(); ++m) {
    if (trace.modules[m].IsSegment()) continue;
    const std::string_view fqn = trace.modules[m].fqn;
    const auto is_around = [&](size_t outer) {
      const std::string_view prefix = trace.modules[outer].fqn;
      return outer == 0 ||
             (fqn.size() > prefix.size() && fqn.starts_with(prefix) &&
              fqn[prefix.size()] == '.');
    };
    while (!open.empty() && !is_around(open.back())) close();
    open.push_back(m);
  }
  while (!open.empty()) close();
  return order;
}

// Returns, indexed by storage, whether an operator reads or writes to it.
std::vector<char> UsedStorages(const Trace& trace) {
  std::vector<char> is_used(trace.storages.size(), 0);
  for (const TraceOperator& op : trace.operators) {
    for (const int32_t s : op.reads) is_used[s] = 1;
    for (const int32_t s : op.mutates) is_used[s] = 1;
  }
  return is_used;
}

void FindStart(const Trace& trace, StoragePlaces& places) {
  std::vector<char> is_placed(trace.storages.size(), 0);
  for (const int32_t s : InOrderOfModuleTo(trace)) {
    if (is_placed[s] != 0 || trace.storages[s].born >= 0) continue;
    is_placed[s] = 1;
    places.model.push_back(s);
  }
  const std::vector<char> is_used = UsedStorages(trace);
  for (int32_t s = 0; s < std::ssize(trace.storages); ++s) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born >= 0 || is_placed[s] != 0 || storage.bytes == 0) continue;
    switch (storage.category) {
      case StorageCategory::kOptimizer:
        places.state.push_back(s);
        break;
      case StorageCategory::kInput:
        places.inputs.push_back(s);
        break;
      case StorageCategory::kGradient:
        break;  // its first microbatch makes it
      case StorageCategory::kBuffer:
        (is_used[s] != 0 ? places.model : places.of_libraries).push_back(s);
        break;
      default:
        // The rest is left by earlier steps, and not there yet.
        if (storage.freed == kNever) places.model.push_back(s);
    }
  }
}

void FindTakenPlaces(const Trace& trace, StoragePlaces& places) {
  places.takes_place_of.assign(trace.storages.size(), -1);
  std::multiset<std::pair<int64_t, int32_t>> freed;  // bytes, storage
  for (int32_t s = 0; s < std::ssize(trace.storages); ++s) {
    const TraceStorage& storage = trace.storages[s];
    const bool is_left = storage.born < 0 && storage.freed != kNever &&
                         storage.category != StorageCategory::kInput;
    if (is_left) freed.insert({storage.bytes, s});
  }
  for (int32_t s = 0; s < std::ssize(trace.storages); ++s) {
    const TraceStorage& storage = trace.storages[s];
    if (storage.born < 0 || storage.freed != kNever) continue;
    const auto place = freed.lower_bound({storage.bytes, 0});
    if (place == freed.end() || place->first != storage.bytes) continue;
    places.takes_place_of[s] = place->second;
    freed.erase(place);
  }
}

void FindAddedGradients(const Trace& trace, StoragePlaces& places) {
  places.becomes_gradient.assign(trace.storages.size(), -1);
  std::vector<char> is_found(trace.storages.size(), 0);
  for (int32_t k = trace.forward_end; k < trace.backward_end; ++k) {
    const TraceOperator& op = trace.operators[k];
    for (const int32_t gradient : op.mutates) {
      const TraceStorage& storage = trace.storages[gradient];
      const bool is_awaited = storage.born < 0 && is_found[gradient] == 0 &&
                              storage.category == StorageCategory::kGradient;
      if (!is_awaited) continue;
      for (const int32_t read : op.reads) {
        const TraceStorage& term = trace.storages[read];
        if (term.born < trace.forward_end || term.bytes != storage.bytes ||
            places.becomes_gradient[read] >= 0) {
          continue;
        }
        places.becomes_gradient[read] = gradient;
        is_found[gradient] = 1;
        break;
      }
    }
  }
}

StoragePlaces FindPlaces(const Trace& trace) {
  StoragePlaces places;
  FindStart(trace, places);
  FindTakenPlaces(trace, places);
  FindAddedGradients(trace, places);
  return places;
}

// The lives that begin and end before each step, the last entry after all.
struct LifeEvents {
  LifeEvents(const LivedStep& step, const Trace& trace)
      : begins(step.steps.size() + 1), ends(step.steps.size() + 1) {
    const int32_t steps = static_cast<int32_t>(step.steps.size());
    for (int32_t k = 0; k < std::ssize(step.lives); ++k) {
      const Life& life = step.lives[k];
      const TraceStorage& storage = trace.storages[life.storage];
      const bool is_original = k < std::ssize(trace.storages);
      if (storage.bytes == 0 || life.begin >= steps) continue;
      const bool is_there_before = is_original && storage.born < 0;
      if (!is_there_before) begins[life.begin].push_back(k);
      const bool outlives = is_original && storage.freed == kNever;
      if (outlives && life.end >= steps) continue;
      const int32_t end =
          std::clamp(life.end, is_there_before ? 0 : life.begin + 1, steps);
      ends[end].push_back(k);
    }
  }

  std::vector<std::vector<int32_t>> begins, ends;
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
    const auto first =
        std::ranges::find_if(step.steps, [&](const Simulation::Step& ran) {
          return ran.redone < 0 && ran.op >= trace.backward_end;
        });
    update = static_cast<int32_t>(first - step.steps.begin());
  }

  const Trace& trace;
  const LivedStep& step;
  RunOptions options;
  StoragePlaces places;
  LifeEvents lives;
  int32_t update = 0;  // the step at which the update begins
};

class RunBuilder {
 public:
  explicit RunBuilder(RunParts parts)
      : parts_(std::move(parts)),
        block_of_life_(parts_.step.lives.size(), kNoBlock) {}

  TrainingRun Build() && {
    for (const int32_t s : parts_.places.model) Allocate(s);
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
    for (int32_t s = 0; s < std::ssize(parts_.trace.storages); ++s) {
      const int32_t block = block_of_life_[s];
      if (block != kNoBlock) end.blocks.emplace_back(s, block);
    }
    run_.iteration_ends.push_back(std::move(end));
  }

  void RunMicrobatch(bool is_last) {
    moment_.step = -1;
    BringInputs();
    const int32_t steps = is_last
                              ? static_cast<int32_t>(parts_.step.steps.size())
                              : parts_.update;
    for (int32_t k = 0; k <= steps; ++k) {
      moment_.step = k;
      for (const int32_t life : parts_.lives.ends[k]) End(life);
      if (k == steps) break;
      if (k == parts_.update) AllocateMissing(parts_.places.state);
      for (const int32_t life : parts_.lives.begins[k]) Allocate(life);
      BringLibraries(parts_.step.steps[k].op);
    }
    EndMicrobatch();
  }

  void BringInputs() {
    if (!parts_.options.renews_inputs)
      return AllocateMissing(parts_.places.inputs);
    std::vector<int32_t> old;
    for (const int32_t s : parts_.places.inputs) {
      if (block_of_life_[s] != kNoBlock) old.push_back(block_of_life_[s]);
      Allocate(s);
    }
    for (const int32_t block : old) Free(block);
  }

  void BringLibraries(int32_t op) {
    const bool is_backward = op >= parts_.trace.forward_end;
    const size_t expected = is_backward
                                ? parts_.places.of_libraries.size()
                                : (parts_.places.of_libraries.size() + 1) / 2;
    if (libraries_ >= expected || !IsMatrixProduct(parts_.trace, op)) return;
    for (; libraries_ < expected; ++libraries_) {
      Allocate(parts_.places.of_libraries[libraries_]);
    }
  }

  // A life's memory is freed, or goes on under another name.
  void End(int32_t life) {
    const int32_t block = block_of_life_[life];
    if (block == kNoBlock) return;
    block_of_life_[life] = kNoBlock;
    const int32_t gradient = life < std::ssize(parts_.trace.storages)
                                 ? parts_.places.becomes_gradient[life]
                                 : -1;
    if (gradient >= 0 && block_of_life_[gradient] == kNoBlock) {
      block_of_life_[gradient] = block;
      return;
    }
    Free(block);
  }

  // Frees what the microbatch made and did not free, or hands it on.
  void EndMicrobatch() {
    for (int32_t life = 0; life < std::ssize(parts_.step.lives); ++life) {
      const int32_t block = block_of_life_[life];
      const TraceStorage& storage =
          parts_.trace.storages[parts_.step.lives[life].storage];
      const bool is_original = life < std::ssize(parts_.trace.storages);
      if (block == kNoBlock || (is_original && storage.born < 0)) continue;
      const int32_t place =
          is_original ? parts_.places.takes_place_of[life] : -1;
      if (place >= 0 && block_of_life_[place] == kNoBlock) {
        block_of_life_[place] = block;
        block_of_life_[life] = kNoBlock;
      } else {
        End(life);
      }
    }
  }

  void AllocateMissing(const std::vector<int32_t>& lives) {
    for (const int32_t life : lives) {
      if (block_of_life_[life] == kNoBlock) Allocate(life);
    }
  }

  void Allocate(int32_t life) {
    const int32_t storage = parts_.step.lives[life].storage;
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
  std::vector<int32_t> block_of_life_;
  RunMoment moment_;
  TrainingRun run_;
};

}  // namespace

TrainingRun MakeTrainingRun(const Trace& trace, const LivedStep& step,
                            const RunOptions& options) {
  return RunBuilder(RunParts(trace, step, options)).Build();
}

}  // namespace acplan::graph
