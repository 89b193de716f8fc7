#include "problems/plan/trace_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <ranges>
#include <set>
#include <string>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/base/message_text.h"
#include "graph/profile/module_tree.h"
#include "graph/trace/allocation.h"

namespace acplan::problems {

using graph::CallId;
using graph::IndexedVector;
using graph::kNever;
using graph::OperatorId;
using graph::Simulation;
using graph::StepId;
using graph::StorageCategory;
using graph::StorageId;
using graph::Time;
using graph::Trace;
using graph::TraceCall;
using graph::TraceStorage;

namespace {

// Returns the bytes that a rank saves of a sharded storage.
int64_t Saving(const TraceStorage& storage, int64_t ranks) {
  return graph::AllocatedBytes(storage.bytes) -
         graph::AllocatedBytes((storage.bytes + ranks - 1) / ranks);
}

// FSDP units in forward order; one more stands for what is outside of all.
enum class UnitId : int32_t {};

// The operators [begin, end) during which a unit is whole.
struct Window {
  Time begin, end;
  UnitId unit;
};

class Sharding {
 public:
  Sharding(const Trace& trace, const MemoryOptions& options)
      : trace_(trace),
        options_(options),
        end_(static_cast<Time>(trace.operators.size())),
        change_(trace.operators.size() + 1) {}

  IndexedVector<OperatorId, CategoryBytes> Run() {
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
    for (const OperatorId op : graph::OperatorsIn(1, end_)) {
      for (size_t c = 0; c < graph::kStorageCategories; ++c) {
        change_[op][c] += change_[Previous(op)][c];
      }
    }
    change_.pop_back();
    return std::move(change_);
  }

  std::vector<RankBytes> At(OperatorId op) {
    std::vector<RankBytes> changes;
    if (options_.world_size == 1) return changes;
    FindUnits();
    const Time time = StartOf(op);
    for (const StorageId s : trace_.storages.ids()) {
      const TraceStorage& storage = trace_.storages[s];
      if (!IsSharded(storage)) continue;
      if (ShardedFrom(storage) <= time && time < storage.freed) {
        changes.push_back(
            {.storage = s, .bytes = -Saving(storage, options_.world_size)});
      }
    }
    for (const Window& whole : WholeWindows()) {
      if (time < whole.begin || time >= whole.end) continue;
      for (const StorageId s : parameters_[whole.unit]) {
        changes.push_back(
            {.storage = s,
             .bytes = Saving(trace_.storages[s], options_.world_size),
             .is_gathered = true});
      }
    }
    return changes;
  }

 private:
  void Add(StorageCategory category, Time begin, Time end, int64_t bytes) {
    begin = std::clamp(begin, 0, end_);
    end = std::clamp(end, begin, end_);
    const auto c = static_cast<size_t>(category);
    change_[graph::OperatorAt(begin)][c] += bytes;
    change_[graph::OperatorAt(end)][c] -= bytes;
  }

  // Finds the units, in forward order, and the operators that each runs.
  void FindUnits() {
    std::map<std::string, UnitId> units;
    for (const std::string& fqn : options_.fsdp_units) {
      if (FindModule(trace_, fqn) == graph::kNone) {
        throw InputError(
            fmt::format("--fsdp-units: expected modules of the trace, found {}",
                        graph::Quoted(fqn)));
      }
      units.try_emplace(fqn, graph::IdAt<UnitId>(units.size()));
    }
    whole_.assign(units.size() + 1, 0);
    parameters_.resize(units.size() + 1);
    std::set<StorageId> counted_storages;  // parameters, each counted once
    for (const graph::ModuleId m : trace_.modules.ids()) {
      UnitId unit_of_module = whole_.last_id();
      size_t longest = 0;
      for (const auto& [fqn, unit] : units) {
        const bool is_around =
            graph::IsSelfOrSubmodule(trace_.modules[m].fqn, fqn);
        if (!is_around || fqn.size() < longest) continue;
        longest = fqn.size();
        unit_of_module = unit;
      }
      for (const StorageId s : trace_.modules[m].parameters) {
        if (!counted_storages.insert(s).second) continue;
        whole_[unit_of_module] +=
            Saving(trace_.storages[s], options_.world_size);
        parameters_[unit_of_module].push_back(s);
      }
    }
    for (const TraceCall& call : trace_.calls) {
      const auto unit = units.find(trace_.modules[call.module].fqn);
      if (unit == units.end()) continue;
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

  Time ShardedFrom(const TraceStorage& storage) const {
    const Time born = StartOf(storage.born);
    Time begin = std::max(born, 0);
    if (storage.category != StorageCategory::kGradient) return begin;
    for (const Window& window : backward_) {
      if (window.begin <= born && born < window.end) {
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
        const Time begin = k == 0 ? window.begin : (*windows)[k - 1].begin;
        whole.push_back({begin, window.end, window.unit});
      }
    }
    // Outside of all units.
    whole.push_back({0, trace_.backward_end, whole_.last_id()});
    return whole;
  }

  const Trace& trace_;
  const MemoryOptions& options_;
  const Time end_;
  IndexedVector<OperatorId, CategoryBytes> change_;
  IndexedVector<UnitId, int64_t> whole_;
  IndexedVector<UnitId, std::vector<StorageId>> parameters_;
  std::vector<Window> forward_, backward_;
};

}  // namespace

IndexedVector<OperatorId, int64_t> BytesOfRank(const Trace& trace,
                                               const MemoryOptions& options) {
  IndexedVector<OperatorId, int64_t> bytes;
  for (const CategoryBytes& by_category : Sharding(trace, options).Run()) {
    bytes.push_back(
        std::accumulate(by_category.begin(), by_category.end(), int64_t{0}));
  }
  return bytes;
}

IndexedVector<OperatorId, CategoryBytes> BytesOfRankByCategory(
    const Trace& trace, const MemoryOptions& options) {
  return Sharding(trace, options).Run();
}

std::vector<RankBytes> BytesOfRankByStorage(const Trace& trace,
                                            const MemoryOptions& options,
                                            OperatorId op) {
  return Sharding(trace, options).At(op);
}

IndexedVector<StepId, Time> TimesOf(const Simulation& simulation) {
  IndexedVector<StepId, Time> times(simulation.steps.size());
  Time time = 0;
  for (const StepId k : std::views::reverse(times.ids())) {
    const Simulation::Step& step = simulation.steps[k];
    if (step.redone == graph::kNone) time = StartOf(step.op);
    times[k] = time;
  }
  return times;
}

Simulation OnRank(Simulation simulation,
                  const IndexedVector<OperatorId, int64_t>& bytes_of_rank) {
  const IndexedVector<StepId, Time> times = TimesOf(simulation);
  simulation.peak_bytes = 0;
  simulation.peak_step = graph::kNone;
  for (const StepId k : times.ids()) {
    int64_t& live = simulation.live_bytes[k];
    live += bytes_of_rank[graph::OperatorAt(times[k])];
    if (live > simulation.peak_bytes || k == StepId{0}) {
      simulation.peak_bytes = live;
      simulation.peak_step = k;
    }
  }
  return simulation;
}

std::string ModuleAt(const Trace& trace, const Simulation& simulation,
                     StepId step) {
  if (step == graph::kNone) return "";
  const auto fqn = [&](CallId call) {
    return trace
        .modules[call == graph::kNone ? graph::ModuleId{0}
                                      : trace.calls[call].module]
        .fqn;
  };
  const Simulation::Step& current = simulation.steps[step];
  if (current.redone != graph::kNone) return fqn(current.redone);
  const Time time = StartOf(current.op);
  if (time < trace.forward_end) return fqn(trace.operators[current.op].call);
  if (time >= trace.backward_end) return "optimizer step";
  CallId innermost = graph::kNone;
  for (const CallId c : trace.calls.ids()) {
    const TraceCall& call = trace.calls[c];
    if (trace.modules[call.module].IsSegment()) continue;
    if (call.backward_start <= time && time < call.backward_end) {
      innermost = c;
    }
  }
  return fqn(innermost);
}

}  // namespace acplan::problems
