#include "problems/check/plan_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <unordered_map>
#include <unordered_set>

#include "graph/base/input_error.h"
#include "graph/profile/pareto_list.h"
#include "graph/profile/tradeoff_curve.h"
#include "graph/trace/simulation.h"
#include "problems/plan/plan_on_trace.h"
#include "problems/plan/trace_memory.h"

namespace acplan::problems {

using graph::Module;
using graph::Profile;
using graph::SacStatistics;

namespace {

// What ratios in double precision may lose over a model of so many bytes.
double ByteTolerance(double model_bytes) { return 0.01 + 1e-14 * model_bytes; }

using ModulesByName = std::unordered_map<std::string_view, const Module*>;

ModulesByName ByName(const Profile& profile) {
  ModulesByName by_name;
  for (const Module& module : profile.modules) by_name[module.fqn] = &module;
  return by_name;
}

// The nearest enclosing name for which `is_one_of` holds.
template <typename Predicate>
std::optional<std::string_view> NearestAbove(std::string_view fqn,
                                             Predicate is_one_of) {
  for (size_t dot = fqn.rfind('.'); dot != std::string_view::npos;
       dot = fqn.substr(0, dot).rfind('.')) {
    const std::string_view above = fqn.substr(0, dot);
    if (is_one_of(above)) return above;
  }
  return std::nullopt;
}

double SumOfMemory(const SacStatistics& sac) {
  double sum = 0;
  for (const int64_t bytes : sac.memory) sum += static_cast<double>(bytes);
  return sum;
}

// ACM of a ratio, and what autograd keeps of it.
double SacBytes(const Module& module, std::string_view tradeoff) {
  if (tradeoff == "pareto" && module.sac) return SumOfMemory(*module.sac);
  double bytes = static_cast<double>(module.act_fw_per_module);
  if (tradeoff == "fit" && module.sac) {
    bytes = std::max(bytes, SumOfMemory(*module.sac));
  } else if (module.torch_fit) {
    bytes = std::max(bytes, static_cast<double>(module.torch_fit->sac_memory));
  }
  return bytes;
}

double InternalBytes(const Module& module, std::string_view tradeoff) {
  const auto internal = static_cast<double>(module.act_fw_per_module);
  return tradeoff == "pareto" ? std::min(internal, SacBytes(module, tradeoff))
                              : internal;
}

struct UnitEffect {
  double discarded_bytes = 0;
  double recompute_ms = 0;
};

UnitEffect EffectOfOps(const Module& module, const PlannedModule& planned) {
  const auto mismatch = [&](const std::string& what) {
    return InputError(fmt::format("plan: {}: {} (plan for another model?)",
                                  planned.fqn, what));
  };
  if (!module.sac)
    throw mismatch("operator decisions, but the profile has no operators");
  const SacStatistics& sac = *module.sac;
  const size_t n = sac.func_names.size();
  if (planned.ops.size() != n) {
    throw mismatch(fmt::format("{} operators in the plan, {} in the profile",
                               planned.ops.size(), n));
  }
  UnitEffect effect;
  double saved = 0;
  for (size_t k = 0; k < n; ++k) {
    const PlannedOp& op = planned.ops[k];
    if (op.index != static_cast<int>(k) || op.name != sac.func_names[k]) {
      throw mismatch(
          fmt::format("operator {} is {} '{}' in the plan, '{}' in the "
                      "profile",
                      k, op.index, op.name, sac.func_names[k]));
    }
    if (op.save) {
      saved += static_cast<double>(sac.memory[k]);
    } else {
      effect.recompute_ms += sac.runtimes[k];
    }
  }
  effect.discarded_bytes =
      std::min(static_cast<double>(module.act_fw_per_module),
               SumOfMemory(sac)) -
      saved;
  return effect;
}

// Of the SAC run-time, by a fit's largest segment.
double FitMs(const graph::TradeoffFit& fit, const PlannedModule& planned) {
  double share = 0;
  for (size_t s = 0; s < fit.slopes.size(); ++s) {
    if (!fit.slopes[s] || !fit.intercepts[s]) {
      throw InputError(
          fmt::format("plan: {}: the profile's trade-off fit of this module is "
                      "null, so the "
                      "effect of a discard ratio is unknown",
                      planned.fqn));
    }
    share = std::max(
        share, *fit.slopes[s] * planned.discard_ratio + *fit.intercepts[s]);
  }
  return share * fit.sac_runtime;
}

// Between the policies at the corners of the Pareto list.
double HullMs(const SacStatistics& sac, const PlannedModule& planned) {
  const graph::OperatorGroups groups = graph::GroupOperators(sac);
  if (!groups.contradiction.empty()) {
    throw InputError(
        fmt::format("plan: {}: no policy keeps all rules of its operators ({})",
                    planned.fqn, groups.contradiction));
  }
  const std::vector<graph::PolicyCost> hull = graph::ParetoHull(groups);
  const double saved = (1 - planned.discard_ratio) * SumOfMemory(sac);
  size_t k = 0;
  while (k < hull.size() && static_cast<double>(hull[k].saved_bytes) < saved) {
    ++k;
  }
  if (k == 0) return hull.front().recompute_ms;
  if (k == hull.size()) return hull.back().recompute_ms;
  const auto left = static_cast<double>(hull[k - 1].saved_bytes);
  const auto right = static_cast<double>(hull[k].saved_bytes);
  return hull[k - 1].recompute_ms +
         (saved - left) / (right - left) *
             (hull[k].recompute_ms - hull[k - 1].recompute_ms);
}

UnitEffect EffectOfRatio(const Module& module, const PlannedModule& planned,
                         std::string_view tradeoff) {
  UnitEffect effect;
  const double sac_bytes = SacBytes(module, tradeoff);
  effect.discarded_bytes = sac_bytes * planned.discard_ratio -
                           (sac_bytes - InternalBytes(module, tradeoff));
  if (tradeoff == "profile") {
    if (!module.torch_fit || module.torch_fit->slopes.empty()) {
      throw InputError(fmt::format(
          "plan: {}: the profile has no trade-off fit of this module, so "
          "the effect of a discard ratio is unknown",
          planned.fqn));
    }
    effect.recompute_ms = FitMs(*module.torch_fit, planned);
    return effect;
  }
  if (!module.sac) {
    throw InputError(fmt::format(
        "plan: {}: the profile has no operators of this module, so the effect "
        "of a discard ratio is unknown",
        planned.fqn));
  }
  effect.recompute_ms = tradeoff == "fit"
                            ? FitMs(graph::FitTradeoff(*module.sac), planned)
                            : HullMs(*module.sac, planned);
  return effect;
}

UnitEffect EffectOf(const Module& module, const PlannedModule& planned,
                    std::string_view tradeoff) {
  return planned.ops.empty() ? EffectOfRatio(module, planned, tradeoff)
                             : EffectOfOps(module, planned);
}

const Module& Lookup(const ModulesByName& by_name, const std::string& fqn) {
  const auto found = by_name.find(fqn);
  if (found == by_name.end()) {
    throw InputError(fmt::format(
        "plan: the profile has no module '{}' (plan for another model?)", fqn));
  }
  return *found->second;
}

struct BytesInUse {
  double persistent = 0;
  double activations = 0;
  double Sum() const { return persistent + activations; }
};

BytesInUse FromSnapshot(const graph::MemorySnapshot& at,
                        const MemoryOptions& memory) {
  const auto bytes = [&](graph::MemoryCategory c) {
    return static_cast<double>(at[c]);
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

double ForcedBytes(const SacStatistics& sac) {
  const size_t n = sac.memory.size();
  std::vector<char> forced(n, 0);
  std::vector<char> view(n, 0);
  for (const int k : sac.view_like_ops) view[k] = 1;
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent) forced[op] = 1;
  }
  if (sac.force_store_random) {
    for (const int k : sac.rand_ops) forced[k] = 1;
  }
  for (bool changed = true; changed;) {
    changed = false;
    const auto tie = [&](int a, int b) {
      if (view[a] || view[b] || forced[a] == forced[b]) return;
      forced[a] = forced[b] = 1;
      changed = true;
    };
    for (const auto& [op, parent] : sac.inplace_ops) tie(op, parent);
    for (size_t k = 1; k < sac.rand_ops.size(); ++k) {
      tie(sac.rand_ops[k - 1], sac.rand_ops[k]);
    }
  }
  double bytes = 0;
  for (size_t k = 0; k < n; ++k) {
    if (forced[k] && !view[k]) bytes += static_cast<double>(sac.memory[k]);
  }
  return bytes;
}

// `saves(k)`: whether operator k is saved.
template <typename Saves>
std::optional<std::string> BrokenOpRule(const SacStatistics& sac,
                                        const graph::OperatorPatterns& patterns,
                                        Saves saves) {
  const auto say = [&](int k, std::string_view rule) {
    return fmt::format("operator {} '{}' {}", k, sac.func_names[k], rule);
  };
  for (const int k : sac.view_like_ops) {
    if (saves(k)) return say(k, "is view-like and must be recomputed");
  }
  for (const int k : sac.rand_ops) {
    if (sac.force_store_random && !saves(k)) {
      return say(k, "is random and must be saved here");
    }
    if (saves(k) != saves(sac.rand_ops.front())) {
      return say(k, "is random and not treated as the other random operators");
    }
  }
  for (const auto& [op, parent] : sac.inplace_ops) {
    if (op == parent && !saves(op)) {
      return say(op, "is in place and must be saved");
    }
    if (saves(op) != saves(parent)) {
      return say(op, "is in place and not treated as its parent");
    }
  }
  for (size_t k = 0; k < sac.func_names.size(); ++k) {
    const auto op = static_cast<int>(k);
    const auto matches = [&](const std::string& pattern) {
      return graph::MatchesPattern(sac.func_names[k], pattern);
    };
    if (!saves(op) && std::ranges::any_of(patterns.save, matches)) {
      return say(op, "must be saved (--save)");
    }
    if (saves(op) && std::ranges::any_of(patterns.recompute, matches)) {
      return say(op, "must be recomputed (--recompute)");
    }
  }
  return std::nullopt;
}

// Whether something is stated that is not so.
bool IsFalse(double stated, double is) {
  return stated != kNotStated &&
         std::abs(stated - is) > 1e-6 * std::abs(is) + 1e-9;
}

// But for the rounding of sums.
bool AreOtherBytes(int64_t stated, int64_t are) {
  return static_cast<double>(std::abs(stated - are)) >
         1 + 1e-12 * static_cast<double>(are);
}

// A unit that has no policy and needs none: the simulation says what it does.
bool IsWhole(const Module& module, const PlannedModule& planned,
             const MemoryOptions& memory) {
  return memory.model == MemoryModel::kTrace && !module.sac &&
         planned.ops.empty() && planned.discard_ratio == 1;
}

std::optional<std::string> BrokenUnitRule(
    const Module& module, const PlannedModule& planned, const Plan& plan,
    const graph::OperatorPatterns& patterns) {
  if (module.is_leaf) {
    return fmt::format("{} is a leaf; leaves are never AC units", planned.fqn);
  }
  if (module.calls == 0) {
    return fmt::format("{} is never called, so it cannot be an AC unit",
                       planned.fqn);
  }
  if (IsWhole(module, planned, plan.memory)) return std::nullopt;
  if (planned.ops.empty() && plan.granularity == "operator") {
    return fmt::format(
        "{} has no operator decisions, in a plan at operator granularity",
        planned.fqn);
  }
  const UnitEffect effect = EffectOf(module, planned, plan.tradeoff);
  if (!planned.ops.empty()) {
    const auto saves = [&](int k) { return planned.ops[k].save; };
    if (auto broken = BrokenOpRule(*module.sac, patterns, saves)) {
      return fmt::format("{}: {}", planned.fqn, *broken);
    }
  } else {
    const double internal = InternalBytes(module, plan.tradeoff);
    double most = internal;
    if (module.sac && (plan.memory.model != MemoryModel::kTorch ||
                       plan.tradeoff != "profile")) {
      most -= ForcedBytes(*module.sac);
    }
    if (effect.discarded_bytes < -ByteTolerance(internal)) {
      return fmt::format(
          "{}: discard ratio {} is below (ACM - IA) / ACM = {}, so it "
          "saves no memory",
          planned.fqn, planned.discard_ratio,
          1 - internal / SacBytes(module, plan.tradeoff));
    }
    if (effect.discarded_bytes > most + ByteTolerance(internal)) {
      return fmt::format(
          "{}: discards {:.0f} bytes, more than the {:.0f} that can be "
          "discarded",
          planned.fqn, effect.discarded_bytes, most);
    }
  }
  return std::nullopt;
}

// The first thing that the plan says of a unit and that is not so.
std::optional<std::string> FalseUnitStatement(const Module& module,
                                              const PlannedModule& planned,
                                              std::string_view tradeoff) {
  const UnitEffect effect = EffectOf(module, planned, tradeoff);
  if (std::abs(planned.discard_ratio + planned.memory_budget - 1) > 1e-6) {
    return fmt::format("{}: memory budget {} is not 1 - discard ratio {}",
                       planned.fqn, planned.memory_budget,
                       planned.discard_ratio);
  }
  if (!planned.ops.empty()) {
    const double total = SumOfMemory(*module.sac);
    double saved = 0;
    for (const PlannedOp& op : planned.ops) {
      if (op.save) saved += static_cast<double>(module.sac->memory[op.index]);
    }
    const double ratio = total > 0 ? 1 - saved / total : 0;
    if (std::abs(planned.discard_ratio - ratio) > 1e-6) {
      return fmt::format(
          "{}: the plan says its discard ratio is {}; its operators make it {}",
          planned.fqn, planned.discard_ratio, ratio);
    }
  }
  if (planned.discarded_bytes != kNotStated &&
      std::abs(static_cast<double>(planned.discarded_bytes) -
               effect.discarded_bytes) > 1) {
    return fmt::format("{}: the plan says {} bytes are discarded; it is {:.2f}",
                       planned.fqn, planned.discarded_bytes,
                       effect.discarded_bytes);
  }
  if (IsFalse(planned.recompute_ms, effect.recompute_ms)) {
    return fmt::format("{}: the plan says it recomputes {} ms; it is {} ms",
                       planned.fqn, planned.recompute_ms, effect.recompute_ms);
  }
  return std::nullopt;
}

double StepMs(const Profile& profile) {
  const ModulesByName by_name = ByName(profile);
  double ms = 0;
  for (const Module& module : profile.modules) {
    if (!NearestAbove(module.fqn, [&](std::string_view name) {
          return by_name.contains(name);
        })) {
      ms += module.fw_runtime_per_module + module.bw_runtime_per_module;
    }
  }
  return ms;
}

// The first thing that the plan says of itself as a whole and that is not so.
std::optional<std::string> FalseStatement(const Profile& profile,
                                          const Plan& plan,
                                          const PlanEffect& effect,
                                          const graph::Trace* trace) {
  const ModulesByName by_name = ByName(profile);
  for (const PlannedModule& planned : plan.modules) {
    const Module& module = Lookup(by_name, planned.fqn);
    if (IsWhole(module, planned, plan.memory)) continue;
    if (auto is_false = FalseUnitStatement(module, planned, plan.tradeoff)) {
      return is_false;
    }
  }
  const auto differs = [](std::string_view what, auto said, auto is) {
    return fmt::format("the plan says its {} is {}; it is {}", what, said, is);
  };
  if (plan.peak_bytes != kNotStated &&
      AreOtherBytes(plan.peak_bytes, effect.peak_bytes)) {
    return fmt::format("the plan says its peak is {} bytes; it is {}",
                       plan.peak_bytes, effect.peak_bytes);
  }
  double peak = 0;
  bool is_at_peak = false;
  for (const RecordUse& record : effect.records) {
    if (record.module == effect.peak_module) peak = record.Bytes();
  }
  for (const RecordUse& record : effect.records) {
    is_at_peak |=
        record.module == plan.peak_module && record.Bytes() >= peak - 1;
  }
  if (!plan.peak_module.empty() && !is_at_peak) {
    return differs("peak module", plan.peak_module, effect.peak_module);
  }
  if (IsFalse(plan.recompute_ms, effect.recompute_ms)) {
    return fmt::format("the plan says it recomputes {} ms; it is {} ms",
                       plan.recompute_ms, effect.recompute_ms);
  }
  if (plan.bound_ms > effect.recompute_ms &&
      IsFalse(plan.bound_ms, effect.recompute_ms)) {
    return fmt::format(
        "the plan's bound of {} ms is above what it recomputes, "
        "{} ms",
        plan.bound_ms, effect.recompute_ms);
  }
  if (plan.bound_ms != kNotStated && effect.recompute_ms > 0) {
    const double gap = std::max(0.0, 1 - plan.bound_ms / effect.recompute_ms);
    if (IsFalse(plan.gap, gap)) return differs("gap", plan.gap, gap);
    if (plan.status == PlanStatus::kOptimal && IsFalse(0, gap)) {
      return fmt::format("the plan says it is optimal; its gap is {}", gap);
    }
  }
  const double step_ms = StepMs(profile);
  if (step_ms > 0 && IsFalse(plan.overhead, effect.recompute_ms / step_ms)) {
    return differs("overhead", plan.overhead, effect.recompute_ms / step_ms);
  }
  if (plan.baseline.peak_bytes != kNotStated) {
    MemoryOptions unsharded = plan.memory;
    unsharded.world_size = 1;
    const PlanEffect baseline =
        ComputeEffect(profile, {}, unsharded, "pareto", trace);
    if (AreOtherBytes(plan.baseline.peak_bytes, baseline.peak_bytes)) {
      return differs("baseline's peak in bytes", plan.baseline.peak_bytes,
                     baseline.peak_bytes);
    }
    if (IsFalse(plan.baseline.runtime_ms, step_ms)) {
      return differs("baseline's run-time in ms", plan.baseline.runtime_ms,
                     step_ms);
    }
  }
  return std::nullopt;
}

// Of what is live at the peak, what is there whatever the plan.
double PersistentBytes(const graph::Trace& trace, int32_t time) {
  double bytes = 0;
  for (const graph::TraceStorage& storage : trace.storages) {
    const bool is_persistent =
        storage.category != graph::StorageCategory::kActivation &&
        storage.category != graph::StorageCategory::kTemporary;
    if (is_persistent && storage.born <= time && time < storage.freed) {
      bytes += static_cast<double>((storage.bytes + 511) / 512 * 512);
    }
  }
  return bytes;
}

PlanEffect EffectOnTrace(const graph::Trace& trace,
                         const std::vector<PlannedModule>& modules,
                         const MemoryOptions& memory) {
  const std::vector<int64_t> bytes_of_rank = BytesOfRank(trace, memory);
  const graph::Simulation use =
      OnRank(graph::Simulate(trace, CheckpointedModules(trace, modules)),
             bytes_of_rank);
  PlanEffect effect{.records = {},
                    .peak_bytes = use.peak_bytes,
                    .peak_module = ModuleAt(trace, use, use.peak_step),
                    .recompute_ms = use.recompute_ms};
  if (use.peak_step < 0) return effect;
  const int32_t time = TimesOf(use)[use.peak_step];
  effect.peak_phase = time < trace.forward_end    ? Phase::kForward
                      : time < trace.backward_end ? Phase::kBackward
                                                  : Phase::kOptimizerStep;
  effect.persistent_bytes =
      PersistentBytes(trace, time) + static_cast<double>(bytes_of_rank[time]);
  effect.activation_bytes =
      static_cast<double>(use.peak_bytes) - effect.persistent_bytes;
  effect.records.push_back({.module = effect.peak_module,
                            .phase = effect.peak_phase,
                            .base_bytes = static_cast<double>(use.peak_bytes)});
  return effect;
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
  std::unordered_map<std::string_view, double> net_of_unit;
  std::unordered_map<std::string_view, double> held_by_unit;
  PlanEffect effect;
  for (const PlannedModule& planned : modules) {
    const Module& module = Lookup(by_name, planned.fqn);
    const UnitEffect unit = EffectOf(module, planned, tradeoff);
    const double held = memory.model != MemoryModel::kTorch
                            ? static_cast<double>(module.held_per_module)
                            : 0;
    net_of_unit[module.fqn] += unit.discarded_bytes - held;
    held_by_unit[module.fqn] += held;
    effect.recompute_ms += unit.recompute_ms;
  }

  double parameters = 0;
  for (const Module& module : profile.modules) {
    if (!NearestAbove(module.fqn, [&](std::string_view name) {
          return by_name.contains(name);
        })) {
      parameters += static_cast<double>(module.param_per_module);
    }
  }

  // Long sums of large numbers keep their last bytes.
  long double discarded = 0;
  double peak = 0;
  const auto add = [&](RecordUse record, double persistent) {
    if (record.Bytes() > peak || effect.records.empty()) {
      peak = record.Bytes();
      effect.peak_module = record.module;
      effect.peak_phase = record.phase;
      effect.persistent_bytes = persistent;
      effect.activation_bytes = peak - persistent;
    }
    effect.records.push_back(std::move(record));
  };
  for (const std::string& fqn : profile.order.fw_post) {
    if (by_name.at(fqn)->calls == 0) continue;
    const auto [use, phase] = UseAtModule(*by_name.at(fqn), parameters, memory);
    double held = 0;
    const auto is_unit = [&](std::string_view name) {
      return held_by_unit.contains(name);
    };
    if (is_unit(fqn)) held += held_by_unit.at(fqn);
    for (auto above = NearestAbove(fqn, is_unit); above;
         above = NearestAbove(*above, is_unit)) {
      held += held_by_unit.at(*above);
    }
    add({.module = fqn,
         .phase = phase,
         .base_bytes = use.Sum(),
         .discarded_bytes = static_cast<double>(discarded - held)},
        use.persistent);
    if (const auto unit = net_of_unit.find(fqn); unit != net_of_unit.end()) {
      discarded += unit->second;
    }
  }
  if (memory.model != MemoryModel::kTorch && !memory.without_states &&
      profile.measured.opt_step_peak_categories) {
    const BytesInUse use =
        FromSnapshot(*profile.measured.opt_step_peak_categories, memory);
    add({.module = std::string(ToString(Phase::kOptimizerStep)),
         .phase = Phase::kOptimizerStep,
         .base_bytes = use.Sum(),
         .discarded_bytes = 0},
        use.persistent);
  }
  effect.peak_bytes = static_cast<int64_t>(
      std::ceil(std::max(0.0, peak - ByteTolerance(peak))));
  return effect;
}

std::optional<std::string> FirstBrokenRule(const Profile& profile,
                                           const Plan& plan,
                                           const PlanRules& rules,
                                           const graph::Trace* trace) {
  const ModulesByName by_name = ByName(profile);
  std::unordered_set<std::string_view> units;
  for (const PlannedModule& planned : plan.modules) units.insert(planned.fqn);
  const std::unordered_set<std::string_view> only(rules.ac_units.begin(),
                                                  rules.ac_units.end());
  std::unordered_map<std::string_view, std::string_view> above_fsdp;
  for (const std::string& fsdp_unit : rules.fsdp_units) {
    NearestAbove(fsdp_unit, [&](std::string_view name) {
      above_fsdp[name] = fsdp_unit;
      return false;
    });
  }
  for (const PlannedModule& planned : plan.modules) {
    const Module& module = Lookup(by_name, planned.fqn);
    if (auto broken = BrokenUnitRule(module, planned, plan, rules.patterns))
      return broken;
    if (const auto above = NearestAbove(
            planned.fqn,
            [&](std::string_view name) { return units.contains(name); })) {
      return fmt::format("{} lies inside {}; AC units must not be nested",
                         planned.fqn, *above);
    }
    if (!only.empty() && !only.contains(planned.fqn)) {
      return fmt::format("{} is not among the given AC units", planned.fqn);
    }
    if (const auto found = above_fsdp.find(planned.fqn);
        found != above_fsdp.end()) {
      return fmt::format("{} contains the FSDP unit {}", planned.fqn,
                         found->second);
    }
  }
  if (rules.max_units &&
      plan.modules.size() > static_cast<size_t>(*rules.max_units)) {
    return fmt::format("{} AC units, more than the {} allowed",
                       plan.modules.size(), *rules.max_units);
  }

  const PlanEffect effect =
      ComputeEffect(profile, plan.modules, plan.memory, plan.tradeoff, trace);
  const auto usable =
      static_cast<double>(plan.budget_bytes - plan.reserve_bytes);
  for (const RecordUse& record : effect.records) {
    if (record.Bytes() > usable + ByteTolerance(record.base_bytes)) {
      return fmt::format(
          "over the budget at {} ({}): {:.0f} bytes in use, {:.0f} allowed",
          record.module, ToString(record.phase), std::ceil(record.Bytes()),
          usable);
    }
  }
  return FalseStatement(profile, plan, effect, trace);
}

std::optional<std::string> FirstBrokenRule(
    const SacStatistics& sac, const StatedPolicy& policy,
    const graph::OperatorPatterns& patterns) {
  const size_t n = sac.memory.size();
  if (policy.save.size() != n) {
    return fmt::format("{} decisions for {} operators", policy.save.size(), n);
  }
  const auto saves = [&](int k) { return policy.save[k] != 0; };
  if (auto broken = BrokenOpRule(sac, patterns, saves)) return broken;
  int64_t total = 0;
  int64_t saved = 0;
  double saved_ms = 0;
  double recompute_ms = 0;
  for (size_t k = 0; k < n; ++k) {
    total += sac.memory[k];
    if (policy.save[k]) saved += sac.memory[k];
    (policy.save[k] ? saved_ms : recompute_ms) += sac.runtimes[k];
  }
  const double capacity =
      std::ceil(policy.memory_budget * static_cast<double>(total));
  if (static_cast<double>(policy.capacity_bytes) != capacity) {
    return fmt::format("the capacity is said to be {} bytes; it is {:.0f}",
                       policy.capacity_bytes, capacity);
  }
  if (saved > policy.capacity_bytes) {
    return fmt::format("{} bytes are saved, more than the capacity of {}",
                       saved, policy.capacity_bytes);
  }
  if (policy.saved_bytes != saved) {
    return fmt::format("{} bytes are said to be saved; it is {}",
                       policy.saved_bytes, saved);
  }
  if (IsFalse(policy.saved_ms, saved_ms)) {
    return fmt::format("{} ms are said to be saved; it is {}", policy.saved_ms,
                       saved_ms);
  }
  if (IsFalse(policy.recompute_ms, recompute_ms)) {
    return fmt::format("{} ms are said to be recomputed; it is {}",
                       policy.recompute_ms, recompute_ms);
  }
  return std::nullopt;
}

}  // namespace acplan::problems
