#include "problems/check/plan_effect.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <unordered_map>
#include <utility>

#include "graph/base/input_error.h"
#include "graph/trace/allocation.h"
#include "graph/trace/simulation.h"
#include "problems/check/unit_effect.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/trace_memory.h"

namespace acplan::problems {

using graph::Module;
using graph::Profile;

namespace {

struct BytesInUse {
  double persistent = 0;
  double activations = 0;
  double Sum() const { return persistent + activations; }
};

BytesInUse FromSnapshot(const graph::MemorySnapshot& snapshot,
                        const MemoryOptions& memory) {
  const auto bytes = [&](graph::MemoryCategory c) {
    return static_cast<double>(snapshot[c]);
  };
  const auto ranks = static_cast<double>(memory.world_size);
  BytesInUse use;
  use.persistent = (bytes(graph::kParam) + bytes(graph::kGrad)) / ranks;
  use.activations = bytes(graph::kAct) + bytes(graph::kTemp);
  if (!memory.without_states) {
    use.persistent += bytes(graph::kOpt) / ranks + bytes(graph::kBuffer) +
                      bytes(graph::kOther);
  }
  return use;
}

std::pair<BytesInUse, Phase> UseAtModule(const Module& module,
                                         double parameters,
                                         const MemoryOptions& memory) {
  if (memory.model == MemoryModel::kTorch) {
    return {
        {.persistent = (parameters + static_cast<double>(module.grad_total)) /
                       static_cast<double>(memory.world_size),
         .activations = static_cast<double>(module.act_total) +
                        static_cast<double>(module.act_grad_per_module)},
        Phase::kBackward};
  }
  if (!module.snap || !module.snap->peak_fw) {
    throw InputError(fmt::format(
        "memory model snapshot: module '{}' has no `snap.peak_fw` in "
        "the profile; use --memory-model torch",
        module.fqn));
  }
  const BytesInUse forward = FromSnapshot(*module.snap->peak_fw, memory);
  if (!module.snap->peak_bw) return {forward, Phase::kForward};
  const BytesInUse backward = FromSnapshot(*module.snap->peak_bw, memory);
  if (backward.Sum() >= forward.Sum()) return {backward, Phase::kBackward};
  return {forward, Phase::kForward};
}

// Returns the bytes that are live at a time under every plan.
double PersistentBytes(const graph::Trace& trace, graph::Time time) {
  double bytes = 0;
  for (const graph::TraceStorage& storage : trace.storages) {
    const bool is_persistent =
        storage.category != graph::StorageCategory::kActivation &&
        storage.category != graph::StorageCategory::kTemporary;
    if (is_persistent && StartOf(storage.born) <= time &&
        time < storage.freed) {
      bytes += static_cast<double>(graph::AllocatedBytes(storage.bytes));
    }
  }
  return bytes;
}

PlanEffect EffectOnTrace(const graph::Trace& trace,
                         const std::vector<PlannedModule>& modules,
                         const MemoryOptions& memory) {
  const auto bytes_of_rank = BytesOfRank(trace, memory);
  const graph::Simulation use =
      OnRank(graph::Simulate(trace, CheckpointedModules(trace, modules)),
             bytes_of_rank);
  PlanEffect effect{.records = {},
                    .peak_bytes = use.peak_bytes,
                    .peak_module = ModuleAt(trace, use, use.peak_step),
                    .recompute_ms = use.recompute_ms};
  if (use.peak_step == graph::kNone) return effect;
  const graph::Time time = TimesOf(use)[use.peak_step];
  effect.peak_phase = time < trace.forward_end    ? Phase::kForward
                      : time < trace.backward_end ? Phase::kBackward
                                                  : Phase::kOptimizerStep;
  effect.persistent_bytes =
      PersistentBytes(trace, time) +
      static_cast<double>(bytes_of_rank[graph::OperatorAt(time)]);
  effect.activation_bytes =
      static_cast<double>(use.peak_bytes) - effect.persistent_bytes;
  effect.records.push_back({.module = effect.peak_module,
                            .phase = effect.peak_phase,
                            .base_bytes = static_cast<double>(use.peak_bytes)});
  return effect;
}

// The bytes that a unit of a plan discards, net of the bytes that its frame
// holds, and the latter.
struct UnitBytes {
  double net_bytes = 0;
  double held_bytes = 0;
};
using UnitsByName = std::unordered_map<std::string_view, UnitBytes>;

// Returns the bytes that the frames of a module and of the units around it hold.
double HeldAround(const UnitsByName& units, const std::string& fqn) {
  const auto is_unit = [&](std::string_view name) {
    return units.contains(name);
  };
  double held_bytes = is_unit(fqn) ? units.at(fqn).held_bytes : 0;
  for (auto above = NearestAbove(fqn, is_unit); above;
       above = NearestAbove(*above, is_unit)) {
    held_bytes += units.at(*above).held_bytes;
  }
  return held_bytes;
}

double ParameterBytes(const Profile& profile, const ModulesByName& by_name) {
  double bytes = 0;
  for (const Module& module : profile.modules) {
    if (IsRoot(by_name, module)) {
      bytes += static_cast<double>(module.param_per_module);
    }
  }
  return bytes;
}

// A record, with its part that no plan changes.
struct Record {
  RecordUse use;
  double persistent_bytes = 0;
};

std::optional<Record> RecordOfOptimizer(const Profile& profile,
                                        const MemoryOptions& memory) {
  const bool is_stated = memory.model != MemoryModel::kTorch &&
                         !memory.without_states &&
                         profile.measured.opt_step_peak_categories;
  if (!is_stated) return std::nullopt;
  const BytesInUse use =
      FromSnapshot(*profile.measured.opt_step_peak_categories, memory);
  return Record{.use = {.module = std::string(ToString(Phase::kOptimizerStep)),
                        .phase = Phase::kOptimizerStep,
                        .base_bytes = use.Sum()},
                .persistent_bytes = use.persistent};
}

// Returns the records in forward post-order. Units that ended before a record
// have discarded their bytes there.
std::vector<Record> RecordsOf(const Profile& profile,
                              const ModulesByName& by_name,
                              const UnitsByName& units,
                              const MemoryOptions& memory) {
  const double parameters = ParameterBytes(profile, by_name);
  std::vector<Record> records;
  // A long double, so that long sums of large numbers keep their last bytes.
  long double discarded = 0;
  for (const std::string& fqn : profile.order.fw_post) {
    const Module& module = *by_name.at(fqn);
    if (module.calls == 0) continue;
    const auto [use, phase] = UseAtModule(module, parameters, memory);
    const double held_bytes = HeldAround(units, fqn);
    records.push_back({.use = {.module = fqn,
                               .phase = phase,
                               .base_bytes = use.Sum(),
                               .discarded_bytes =
                                   static_cast<double>(discarded - held_bytes)},
                       .persistent_bytes = use.persistent});
    if (const auto unit = units.find(fqn); unit != units.end()) {
      discarded += unit->second.net_bytes;
    }
  }
  if (auto optimizer = RecordOfOptimizer(profile, memory)) {
    records.push_back(std::move(*optimizer));
  }
  return records;
}

}  // namespace

PlanEffect ComputeEffect(const Profile& profile,
                         const std::vector<PlannedModule>& modules,
                         const MemoryOptions& memory, std::string_view tradeoff,
                         const graph::Trace* trace) {
  if (memory.model == MemoryModel::kTrace) {
    if (!trace) {
      throw InputError(
          "plan: memory model trace: expected a trace in place of a profile");
    }
    return EffectOnTrace(*trace, modules, memory);
  }
  const ModulesByName by_name = ByName(profile);
  UnitsByName units;
  PlanEffect effect;
  for (const PlannedModule& planned_unit : modules) {
    const Module& module = Lookup(by_name, planned_unit.fqn);
    if (const auto unknown = KnownOnTracesOnly(planned_unit)) {
      throw InputError("plan: " + *unknown);
    }
    const UnitEffect unit = EffectOf(module, planned_unit, tradeoff);
    const double held_bytes = memory.model != MemoryModel::kTorch
                                  ? static_cast<double>(module.held_per_module)
                                  : 0;
    UnitBytes& bytes = units[module.fqn];
    bytes.net_bytes += unit.discarded_bytes - held_bytes;
    bytes.held_bytes += held_bytes;
    effect.recompute_ms += unit.recompute_ms;
  }
  double peak = 0;
  for (Record& record : RecordsOf(profile, by_name, units, memory)) {
    if (record.use.Bytes() > peak || effect.records.empty()) {
      peak = record.use.Bytes();
      effect.peak_module = record.use.module;
      effect.peak_phase = record.use.phase;
      effect.persistent_bytes = record.persistent_bytes;
      effect.activation_bytes = peak - record.persistent_bytes;
    }
    effect.records.push_back(std::move(record.use));
  }
  effect.peak_bytes =
      static_cast<int64_t>(std::ceil(std::max(0.0, peak - ByteRounding(peak))));
  return effect;
}

double StepMs(const Profile& profile) {
  const ModulesByName by_name = ByName(profile);
  double ms = 0;
  for (const Module& module : profile.modules) {
    if (IsRoot(by_name, module)) {
      ms += module.fw_runtime_per_module + module.bw_runtime_per_module;
    }
  }
  return ms;
}

}  // namespace acplan::problems
