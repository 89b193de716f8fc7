#include "problems/plan/trace_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <string>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/trace/allocation.h"

namespace acplan::problems {

using graph::kNever;
using graph::Simulation;
using graph::StorageCategory;
using graph::Trace;
using graph::TraceCall;
using graph::TraceStorage;

namespace {

// Returns the bytes that a rank saves of a sharded storage.
int64_t Saving(const TraceStorage& storage, int64_t ranks) {
  return graph::AllocatedBytes(storage.bytes) -
         graph::AllocatedBytes((storage.bytes + ranks - 1) / ranks);
}

// The operators [begin, end) in which a unit is whole.
struct Window {
  int32_t begin, end;
  int unit;
};

class Sharding {
 public:
  Sharding(const Trace& trace, const MemoryOptions& options)
      : trace_(trace),
        options_(options),
        count_(static_cast<int32_t>(trace.operators.size())),
        change_(static_cast<size_t>(count_) + 1) {}

  std::vector<CategoryBytes> Run() {
    if (options_.world_size > 1) {
      FindUnits();
      for (const TraceStorage& storage : trace_.storages) {
        if (!IsSharded(storage)) continue;
        Add(storage.category, ShardedFrom(storage), storage.freed,
            -Saving(storage, options_.world_size));
      }
      for (const Window& whole : WholeWindows()) {
        Add(StorageCategory::kParameter, whole.begin, whole.end,
            whole_[whole.unit]);
      }
    }
    for (int32_t t = 1; t < count_; ++t) {
      for (size_t c = 0; c < graph::kStorageCategories; ++c) {
        change_[t][c] += change_[t - 1][c];
      }
    }
    change_.resize(count_);
    return std::move(change_);
  }

  std::vector<RankBytes> At(int32_t op) {
    std::vector<RankBytes> changes;
    if (options_.world_size == 1) return changes;
    FindUnits();
    for (int32_t s = 0; s < std::ssize(trace_.storages); ++s) {
      const TraceStorage& storage = trace_.storages[s];
      if (!IsSharded(storage)) continue;
      if (ShardedFrom(storage) <= op && op < storage.freed) {
        changes.push_back(
            {.storage = s, .bytes = -Saving(storage, options_.world_size)});
      }
    }
    for (const Window& whole : WholeWindows()) {
      if (op < whole.begin || op >= whole.end) continue;
      for (const int32_t s : parameters_[whole.unit]) {
        changes.push_back(
            {.storage = s,
             .bytes = Saving(trace_.storages[s], options_.world_size),
             .is_gathered = true});
      }
    }
    return changes;
  }

 private:
  void Add(StorageCategory category, int32_t begin, int32_t end,
           int64_t bytes) {
    begin = std::clamp(begin, 0, count_);
    end = std::clamp(end, begin, count_);
    change_[begin][static_cast<size_t>(category)] += bytes;
    change_[end][static_cast<size_t>(category)] -= bytes;
  }

  // Finds the units, in forward order, and the operators that each runs.
  void FindUnits() {
    std::map<std::string, int> index;
    for (const std::string& fqn : options_.fsdp_units) {
      const auto module =
          std::ranges::find(trace_.modules, fqn, &graph::TraceModule::fqn);
      if (module == trace_.modules.end()) {
        throw InputError(
            fmt::format("--fsdp-units: expected modules of the trace, found {}",
                        graph::Quoted(fqn)));
      }
      index.try_emplace(fqn, static_cast<int>(index.size()));
    }
    whole_.assign(index.size() + 1, 0);
    parameters_.resize(index.size() + 1);
    std::vector<int> unit_of(trace_.modules.size(), -1);
    std::set<int32_t> counted_storages;  // parameters that are counted already
    for (size_t m = 0; m < trace_.modules.size(); ++m) {
      size_t longest = 0;
      for (const auto& [fqn, unit] : index) {
        const bool is_around =
            graph::IsSelfOrSubmodule(trace_.modules[m].fqn, fqn);
        if (!is_around || fqn.size() < longest) continue;
        longest = fqn.size();
        unit_of[m] = unit;
      }
      for (const int32_t s : trace_.modules[m].parameters) {
        if (!counted_storages.insert(s).second) continue;
        const size_t unit = unit_of[m] < 0 ? index.size() : unit_of[m];
        whole_[unit] += Saving(trace_.storages[s], options_.world_size);
        parameters_[unit].push_back(s);
      }
    }
    for (const TraceCall& call : trace_.calls) {
      const auto unit = index.find(trace_.modules[call.module].fqn);
      if (unit == index.end()) continue;
      forward_.push_back({call.start, call.end, unit->second});
      if (call.backward_start != kNever) {
        backward_.push_back(
            {call.backward_start, call.backward_end, unit->second});
      }
    }
    std::ranges::sort(backward_, {}, &Window::begin);
  }

  static bool IsSharded(const TraceStorage& storage) {
    return storage.category == StorageCategory::kParameter ||
           storage.category == StorageCategory::kGradient ||
           storage.category == StorageCategory::kOptimizer;
  }

  int32_t ShardedFrom(const TraceStorage& storage) const {
    int32_t begin = std::max(storage.born, 0);
    if (storage.category != StorageCategory::kGradient) return begin;
    for (const Window& window : backward_) {
      if (window.begin <= storage.born && storage.born < window.end) {
        begin = std::max(begin, window.end);
      }
    }
    return begin;
  }

  std::vector<Window> WholeWindows() const {
    std::vector<Window> whole;
    if (options_.fsdp_units.empty()) return whole;
    for (const std::vector<Window>* windows : {&forward_, &backward_}) {
      for (size_t k = 0; k < windows->size(); ++k) {
        const Window& window = (*windows)[k];
        const int32_t begin = k == 0 ? window.begin : (*windows)[k - 1].begin;
        whole.push_back({begin, window.end, window.unit});
      }
    }
    const int outside_unit = static_cast<int>(whole_.size()) - 1;
    whole.push_back({0, trace_.backward_end, outside_unit});
    return whole;
  }

  const Trace& trace_;
  const MemoryOptions& options_;
  const int32_t count_;
  std::vector<CategoryBytes> change_;
  // Indexed by unit; the last entry is for parameters outside of all units.
  std::vector<int64_t> whole_;
  std::vector<std::vector<int32_t>> parameters_;
  std::vector<Window> forward_, backward_;
};

}  // namespace

std::vector<int64_t> BytesOfRank(const Trace& trace,
                                 const MemoryOptions& options) {
  std::vector<int64_t> bytes;
  for (const CategoryBytes& by_category : Sharding(trace, options).Run()) {
    bytes.push_back(
        std::accumulate(by_category.begin(), by_category.end(), int64_t{0}));
  }
  return bytes;
}

std::vector<CategoryBytes> BytesOfRankByCategory(const Trace& trace,
                                                 const MemoryOptions& options) {
  return Sharding(trace, options).Run();
}

std::vector<RankBytes> BytesOfRankByStorage(const Trace& trace,
                                            const MemoryOptions& options,
                                            int32_t op) {
  return Sharding(trace, options).At(op);
}

std::vector<int32_t> TimesOf(const Simulation& simulation) {
  std::vector<int32_t> times(simulation.steps.size());
  int32_t time = 0;
  for (size_t k = times.size(); k-- > 0;) {
    if (simulation.steps[k].redone < 0) time = simulation.steps[k].op;
    times[k] = time;
  }
  return times;
}

Simulation OnRank(Simulation simulation,
                  const std::vector<int64_t>& bytes_of_rank) {
  const std::vector<int32_t> times = TimesOf(simulation);
  simulation.peak_bytes = 0;
  simulation.peak_step = -1;
  for (size_t k = 0; k < times.size(); ++k) {
    int64_t& live = simulation.live_bytes[k];
    live += bytes_of_rank[times[k]];
    if (live > simulation.peak_bytes || k == 0) {
      simulation.peak_bytes = live;
      simulation.peak_step = static_cast<int32_t>(k);
    }
  }
  return simulation;
}

std::string ModuleAt(const Trace& trace, const Simulation& simulation,
                     int32_t step) {
  if (step < 0) return "";
  const auto fqn = [&](int32_t call) {
    return trace.modules[call < 0 ? 0 : trace.calls[call].module].fqn;
  };
  const Simulation::Step& current = simulation.steps[step];
  if (current.redone >= 0) return fqn(current.redone);
  if (current.op < trace.forward_end)
    return fqn(trace.operators[current.op].call);
  if (current.op >= trace.backward_end) return "optimizer step";
  int32_t innermost = -1;
  for (int32_t c = 0; c < std::ssize(trace.calls); ++c) {
    const TraceCall& call = trace.calls[c];
    if (trace.modules[call.module].IsSegment()) continue;
    if (call.backward_start <= current.op && current.op < call.backward_end) {
      innermost = c;
    }
  }
  return fqn(innermost);
}

}  // namespace acplan::problems
