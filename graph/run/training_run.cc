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

// What happens to storages of the trace in all iterations alike.
struct StoragePlaces {
  // In the order in which they are put on the device.
  std::vector<int32_t> model, inputs, state, of_libraries;
  // By storage: the one that lives before the step and whose place it takes, or
  // -1.
  std::vector<int32_t> takes_place_of;
  // By storage: the gradient that it becomes where there is none, or -1.
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
    const auto is_around = [&](size_t around) {
      const std::string_view prefix = trace.modules[around].fqn;
      return around == 0 ||
             (fqn.size() > prefix.size() && fqn.starts_with(prefix) &&
              fqn[prefix.size()] == '.');
    };
    while (!open.empty() && !is_around(open.back())) close();
    open.push_back(m);
  }
  while (!open.empty()) close();
  return order;
}

// By storage: an operator reads or writes to it.
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
        // What an earlier step left is not there yet.
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
    const auto found = freed.lower_bound({storage.bytes, 0});
    if (found == freed.end() || found->first != storage.bytes) continue;
    places.takes_place_of[s] = found->second;
    freed.erase(found);
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
        const TraceStorage& added = trace.storages[read];
        if (added.born < trace.forward_end || added.bytes != storage.bytes ||
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

class RunBuilder {
 public:
  RunBuilder(const Trace& trace, const LivedStep& step,
             const RunOptions& options)
      : trace_(trace),
        step_(step),
        options_(options),
        places_(FindPlaces(trace)),
        lives_(step, trace),
        block_of_life_(step.lives.size(), kNoBlock) {
    const auto update =
        std::ranges::find_if(step.steps, [&](const Simulation::Step& ran) {
          return ran.redone < 0 && ran.op >= trace.backward_end;
        });
    update_ = static_cast<int32_t>(update - step.steps.begin());
  }

  TrainingRun Build() && {
    for (const int32_t s : places_.model) Allocate(s);
    if (options_.makes_state_first) AllocateMissing(places_.state);
    for (int64_t i = 0; i < options_.iterations; ++i) RunIteration(i);
    return std::move(run_);
  }

 private:
  void RunIteration(int64_t iteration) {
    moment_.iteration = static_cast<int32_t>(iteration);
    const int64_t microbatches =
        std::min(trace_.microbatches, options_.microbatches);
    for (int64_t m = 0; m < microbatches; ++m) {
      moment_.microbatch = static_cast<int32_t>(m);
      RunMicrobatch(m + 1 == microbatches);
    }
    IterationEnd end{.events = run_.events.events.size(), .blocks = {}};
    for (int32_t s = 0; s < std::ssize(trace_.storages); ++s) {
      const int32_t block = block_of_life_[s];
      if (block != kNoBlock) end.blocks.emplace_back(s, block);
    }
    run_.iteration_ends.push_back(std::move(end));
  }

  void RunMicrobatch(bool is_last) {
    moment_.step = -1;
    BringInputs();
    const int32_t steps =
        is_last ? static_cast<int32_t>(step_.steps.size()) : update_;
    for (int32_t k = 0; k <= steps; ++k) {
      moment_.step = k;
      for (const int32_t life : lives_.ends[k]) End(life);
      if (k == steps) break;
      if (k == update_) AllocateMissing(places_.state);
      for (const int32_t life : lives_.begins[k]) Allocate(life);
      BringLibraries(step_.steps[k].op);
    }
    EndMicrobatch();
  }

  void BringInputs() {
    if (!options_.renews_inputs) return AllocateMissing(places_.inputs);
    std::vector<int32_t> old;
    for (const int32_t s : places_.inputs) {
      if (block_of_life_[s] != kNoBlock) old.push_back(block_of_life_[s]);
      Allocate(s);
    }
    for (const int32_t block : old) Free(block);
  }

  void BringLibraries(int32_t op) {
    const bool is_backward = op >= trace_.forward_end;
    const size_t expected = is_backward ? places_.of_libraries.size()
                                        : (places_.of_libraries.size() + 1) / 2;
    if (libraries_ >= expected || !IsMatrixProduct(trace_, op)) return;
    for (; libraries_ < expected; ++libraries_) {
      Allocate(places_.of_libraries[libraries_]);
    }
  }

  // A life's memory is freed, or goes on under another name.
  void End(int32_t life) {
    const int32_t block = block_of_life_[life];
    if (block == kNoBlock) return;
    block_of_life_[life] = kNoBlock;
    const int32_t gradient = life < std::ssize(trace_.storages)
                                 ? places_.becomes_gradient[life]
                                 : -1;
    if (gradient >= 0 && block_of_life_[gradient] == kNoBlock) {
      block_of_life_[gradient] = block;
      return;
    }
    Free(block);
  }

  // What the microbatch made and did not free.
  void EndMicrobatch() {
    for (int32_t life = 0; life < std::ssize(step_.lives); ++life) {
      const int32_t block = block_of_life_[life];
      const TraceStorage& storage = trace_.storages[step_.lives[life].storage];
      const bool is_original = life < std::ssize(trace_.storages);
      if (block == kNoBlock || (is_original && storage.born < 0)) continue;
      const int32_t place = is_original ? places_.takes_place_of[life] : -1;
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
    const int32_t storage = step_.lives[life].storage;
    const int32_t block = static_cast<int32_t>(run_.storages.size());
    run_.storages.push_back(storage);
    run_.events.block_ids.push_back(block);
    block_of_life_[life] = block;
    Add({.kind = AllocatorEvent::Kind::kAllocate,
         .block = block,
         .bytes = trace_.storages[storage].bytes});
  }

  void Free(int32_t block) {
    Add({.kind = AllocatorEvent::Kind::kFree, .block = block});
  }

  void Add(const AllocatorEvent& event) {
    run_.events.events.push_back(event);
    run_.moments.push_back(moment_);
  }

  const Trace& trace_;
  const LivedStep& step_;
  RunOptions options_;
  StoragePlaces places_;
  LifeEvents lives_;
  int32_t update_ = 0;    // the step at which the update begins
  size_t libraries_ = 0;  // how many of them are there
  std::vector<int32_t> block_of_life_;
  RunMoment moment_;
  TrainingRun run_;
};

}  // namespace

TrainingRun MakeTrainingRun(const Trace& trace, const LivedStep& step,
                            const RunOptions& options) {
  return RunBuilder(trace, step, options).Build();
}

}  // namespace acplan::graph
