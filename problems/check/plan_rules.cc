#include "problems/check/plan_rules.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

#include "problems/check/device_rules.h"
#include "problems/check/host_rules.h"
#include "problems/check/offload_rules.h"
#include "problems/check/plan_effect.h"
#include "problems/check/policy_rules.h"
#include "problems/check/skip_rules.h"
#include "problems/check/state_rules.h"
#include "problems/check/stated_number.h"
#include "problems/check/stream_rules.h"
#include "problems/check/unit_effect.h"
#include "problems/plan/plan_on_trace.h"

namespace acplan::problems {

using graph::Module;
using graph::Profile;

namespace {

using BrokenRule = std::optional<std::string>;

// Returns whether a unit has no policy and needs none: then the simulation
// defines its effect.
bool IsWhole(const Module& module, const PlannedModule& planned_unit,
             const MemoryOptions& memory) {
  return memory.model == MemoryModel::kTrace && !module.sac &&
         planned_unit.ops.empty() && planned_unit.discard_ratio == 1;
}

std::optional<std::string> BrokenRatioRule(const Module& module,
                                           const PlannedModule& planned_unit,
                                           const Plan& plan) {
  const UnitEffect effect = EffectOf(module, planned_unit, plan.tradeoff);
  const double internal = InternalBytes(module, plan.tradeoff);
  double limit = internal;
  if (module.sac && (plan.memory.model != MemoryModel::kTorch ||
                     plan.tradeoff != "profile")) {
    limit -= ForcedBytes(*module.sac);
  }
  if (effect.discarded_bytes < -ByteRounding(internal)) {
    return fmt::format(
        "{}: discard ratio {} is below (ACM - IA) / ACM = {}, so it "
        "saves no memory",
        planned_unit.fqn, planned_unit.discard_ratio,
        1 - internal / SacBytes(module, plan.tradeoff));
  }
  if (effect.discarded_bytes > limit + ByteRounding(internal)) {
    return fmt::format(
        "{}: discards {:.0f} bytes, more than the {:.0f} that can be "
        "discarded",
        planned_unit.fqn, effect.discarded_bytes, limit);
  }
  return std::nullopt;
}

std::optional<std::string> BrokenUnitRule(
    const Module& module, const PlannedModule& planned_unit, const Plan& plan,
    const graph::OperatorPatterns& patterns) {
  if (module.is_leaf) {
    return fmt::format("{} is a leaf; leaves are never AC units",
                       planned_unit.fqn);
  }
  if (module.calls == 0) {
    return fmt::format("{} is never called, so it cannot be an AC unit",
                       planned_unit.fqn);
  }
  if (IsWhole(module, planned_unit, plan.memory)) return std::nullopt;
  if (planned_unit.ops.empty() && plan.granularity == "operator") {
    return fmt::format(
        "{} has no operator decisions, in a plan at operator granularity",
        planned_unit.fqn);
  }
  if (planned_unit.ops.empty())
    return BrokenRatioRule(module, planned_unit, plan);
  // Throws if the operators differ from the profile's.
  EffectOf(module, planned_unit, plan.tradeoff);
  const auto decision = [&](int k) { return planned_unit.ops[k].decision; };
  const bool is_on_trace = plan.memory.model == MemoryModel::kTrace;
  if (!is_on_trace) {
    if (auto unknown = KnownOnTracesOnly(planned_unit)) return unknown;
  }
  if (auto broken =
          BrokenOperatorRule(*module.sac, patterns, decision, is_on_trace)) {
    return fmt::format("{}: {}", planned_unit.fqn, *broken);
  }
  return std::nullopt;
}

// Checks the kind, the place and the number of the units.
BrokenRule BrokenUnitRules(const Profile& profile, const Plan& plan,
                           const PlanRules& rules) {
  const ModulesByName by_name = ByName(profile);
  std::unordered_set<std::string_view> units;
  for (const PlannedModule& planned_unit : plan.modules)
    units.insert(planned_unit.fqn);
  const std::unordered_set<std::string_view> only(rules.ac_units.begin(),
                                                  rules.ac_units.end());
  std::unordered_map<std::string, std::string_view> above_fsdp;
  for (const std::string& fsdp_unit : rules.fsdp_units) {
    for (const std::string& name : NamesAround(by_name, fsdp_unit)) {
      above_fsdp[name] = fsdp_unit;
    }
  }
  for (const PlannedModule& planned_unit : plan.modules) {
    const Module& module = Lookup(by_name, planned_unit.fqn);
    if (auto broken =
            BrokenUnitRule(module, planned_unit, plan, rules.patterns))
      return broken;
    const std::vector<std::string> names_around =
        NamesAround(by_name, planned_unit.fqn);
    const auto above = std::ranges::find_if(
        names_around,
        [&](const std::string& name) { return units.contains(name); });
    if (above != names_around.end()) {
      return fmt::format("{} lies inside {}; AC units must not be nested",
                         planned_unit.fqn, *above);
    }
    if (!only.empty() && !only.contains(planned_unit.fqn)) {
      return fmt::format("{} is not among the given AC units",
                         planned_unit.fqn);
    }
    if (const auto fsdp_unit = above_fsdp.find(planned_unit.fqn);
        fsdp_unit != above_fsdp.end()) {
      return fmt::format("{} contains the FSDP unit {}", planned_unit.fqn,
                         fsdp_unit->second);
    }
  }
  if (rules.max_units &&
      plan.modules.size() > static_cast<size_t>(*rules.max_units)) {
    return fmt::format("{} AC units, more than the {} allowed",
                       plan.modules.size(), *rules.max_units);
  }
  return std::nullopt;
}

BrokenRule BrokenBudget(const Plan& plan, const PlanEffect& effect) {
  const auto usable =
      static_cast<double>(plan.budget_bytes - plan.reserve_bytes);
  for (const RecordUse& record : effect.records) {
    if (record.Bytes() > usable + ByteRounding(record.base_bytes)) {
      return fmt::format(
          "over the budget at {} ({}): {:.0f} bytes in use, {:.0f} allowed",
          record.module, ToString(record.phase), std::ceil(record.Bytes()),
          usable);
    }
  }
  return std::nullopt;
}

std::optional<std::string> FalseMemoryBudget(
    const PlannedModule& planned_unit) {
  if (std::abs(planned_unit.discard_ratio + planned_unit.memory_budget - 1) >
      1e-6) {
    return fmt::format("{}: memory budget {} is not 1 - discard ratio {}",
                       planned_unit.fqn, planned_unit.memory_budget,
                       planned_unit.discard_ratio);
  }
  return std::nullopt;
}

// Returns the first false statement of the plan about a unit.
std::optional<std::string> FalseUnitStatement(const Module& module,
                                              const PlannedModule& planned_unit,
                                              std::string_view tradeoff) {
  const UnitEffect effect = EffectOf(module, planned_unit, tradeoff);
  if (!planned_unit.ops.empty()) {
    const double total = SumOfMemory(*module.sac);
    double saved = 0;
    for (const PlannedOp& op : planned_unit.ops) {
      if (op.Saves())
        saved += static_cast<double>(module.sac->memory[op.index]);
    }
    const double ratio = total > 0 ? 1 - saved / total : 0;
    if (std::abs(planned_unit.discard_ratio - ratio) > 1e-6) {
      return fmt::format(
          "{}: the plan says its discard ratio is {}; its operators make it {}",
          planned_unit.fqn, planned_unit.discard_ratio, ratio);
    }
  }
  // Operators discard whole bytes, ratios are rounded.
  const double rounding = planned_unit.ops.empty() ? 1 : 0.5;
  if (planned_unit.discarded_bytes != kNotStated &&
      std::abs(static_cast<double>(planned_unit.discarded_bytes) -
               effect.discarded_bytes) > rounding) {
    return fmt::format("{}: the plan says {} bytes are discarded; it is {:.2f}",
                       planned_unit.fqn, planned_unit.discarded_bytes,
                       effect.discarded_bytes);
  }
  if (IsFalse(planned_unit.recompute_ms, effect.recompute_ms)) {
    return fmt::format("{}: the plan says it recomputes {} ms; it is {} ms",
                       planned_unit.fqn, planned_unit.recompute_ms,
                       effect.recompute_ms);
  }
  return std::nullopt;
}

// Checks a unit without a policy by the step in which it alone is one.
BrokenRule FalseWholeUnit(const graph::Trace& trace, const Plan& plan,
                          const PlannedModule& planned_unit) {
  const PlanEffect effect = ComputeEffect(graph::Profile(), {planned_unit},
                                          plan.memory, plan.tradeoff, &trace);
  if (IsFalse(planned_unit.recompute_ms, effect.recompute_ms)) {
    return fmt::format("{}: the plan says it recomputes {} ms; it is {} ms",
                       planned_unit.fqn, planned_unit.recompute_ms,
                       effect.recompute_ms);
  }
  return std::nullopt;
}

// Returns whether the peak is at the module, or equally at it as at another.
bool IsAtPeak(const PlanEffect& effect, std::string_view module) {
  double peak = 0;
  for (const RecordUse& record : effect.records) {
    if (record.module == effect.peak_module) peak = record.Bytes();
  }
  return std::ranges::any_of(effect.records, [&](const RecordUse& record) {
    return record.module == module && record.Bytes() >= peak - 1;
  });
}

// Returns whether a stated peak is another one. A simulated step has whole
// bytes, sums of records are rounded.
bool IsOtherPeak(int64_t stated, int64_t actual, MemoryModel model) {
  return model == MemoryModel::kTrace ? stated != actual
                                      : AreOtherBytes(stated, actual);
}

BrokenRule FalsePeak(const Plan& plan, const PlanEffect& effect) {
  if (plan.peak_bytes != kNotStated &&
      IsOtherPeak(plan.peak_bytes, effect.peak_bytes, plan.memory.model)) {
    return fmt::format("the plan says its peak is {} bytes; it is {}",
                       plan.peak_bytes, effect.peak_bytes);
  }
  if (!plan.peak_module.empty() && !IsAtPeak(effect, plan.peak_module)) {
    return Differs("peak module", plan.peak_module, effect.peak_module);
  }
  return std::nullopt;
}

// Checks that a plan on streams that is called optimal has a step that no plan's is below.
BrokenRule UnprovenStep(const Plan& plan) {
  if (plan.status != PlanStatus::kOptimal) return std::nullopt;
  const auto exceeds = [](double step_ms, double least_ms) {
    return step_ms > least_ms && IsFalse(step_ms, least_ms);
  };
  const PlanStreams& streams = *plan.streams;
  const double least_ms =
      std::max(streams.least_step_ms.value_or(0),
               plan.host ? plan.host->least_step_ms.value_or(0) : 0);
  const double step_ms =
      std::max(streams.step_ms, plan.host ? plan.host->ms : 0);
  if (!exceeds(step_ms, least_ms)) return std::nullopt;
  return fmt::format(
      "the plan says it is optimal; its step takes {} ms, and is proven to "
      "take at least {} ms",
      step_ms, least_ms);
}

// Checks the stated recomputation, and the bound and the gap, which refer to
// the cost: the recomputation plus the time that the step waits.
BrokenRule FalseCost(const Plan& plan, double recompute_ms, double cost_ms) {
  if (IsFalse(plan.recompute_ms, recompute_ms)) {
    return fmt::format("the plan says it recomputes {} ms; it is {} ms",
                       plan.recompute_ms, recompute_ms);
  }
  if (plan.bound_ms > cost_ms && IsFalse(plan.bound_ms, cost_ms)) {
    return fmt::format(
        "the plan's bound of {} ms is above what it {}, "
        "{} ms",
        plan.bound_ms, plan.offload ? "costs" : "recomputes", cost_ms);
  }
  const bool has_bound = plan.bound_ms != kNotStated || cost_ms <= 0;
  const double gap = !has_bound    ? std::max(0.0, plan.gap)
                     : cost_ms > 0 ? std::max(0.0, 1 - plan.bound_ms / cost_ms)
                                   : 0;
  if (IsFalse(plan.gap, gap)) return Differs("gap", plan.gap, gap);
  if (plan.streams && plan.streams->least_step_ms) return UnprovenStep(plan);
  if (plan.status == PlanStatus::kOptimal && IsFalse(0, gap)) {
    return fmt::format("the plan says it is optimal; its gap is {}", gap);
  }
  return std::nullopt;
}

BrokenRule FalseAnySchedule(const Plan& plan, double recompute_ms) {
  if (!plan.any_schedule) return std::nullopt;
  const double bound_ms = plan.any_schedule->bound_ms;
  if (bound_ms > recompute_ms && IsFalse(bound_ms, recompute_ms)) {
    return fmt::format(
        "the plan says that any schedule recomputes at least {} ms; the plan "
        "recomputes {} ms",
        bound_ms, recompute_ms);
  }
  const double distance =
      recompute_ms > 0 ? std::max(0.0, 1 - bound_ms / recompute_ms) : 0;
  if (IsFalse(plan.any_schedule->distance, distance)) {
    return Differs("distance from any schedule", plan.any_schedule->distance,
                   distance);
  }
  return std::nullopt;
}

// Checks that what the plan may lose is no less than what it is known to lose, and that a
// larger box has no smaller bound. The proof is a search, which is not repeated here.
BrokenRule FalseTimesOff(const Plan& plan) {
  if (!plan.times_off) return std::nullopt;
  const TimesOff& off = *plan.times_off;
  const auto exceeds = [](double lower, double upper) {
    return lower > upper && IsFalse(lower, upper);
  };
  for (const RegretBounds* bounds : {&off.by_kind, &off.by_operator}) {
    if (!bounds->lower) continue;
    const WorstRegret& lower = *bounds->lower;
    if (exceeds(lower.step, bounds->upper.step) ||
        (bounds->upper.recomputation &&
         exceeds(lower.recomputation.value_or(HUGE_VAL),
                 *bounds->upper.recomputation))) {
      return "the plan says it loses more for some run-times than for any";
    }
  }
  if (exceeds(off.by_kind.upper.step, off.by_operator.upper.step) ||
      exceeds(off.least_step.value_or(0), off.by_kind.upper.step)) {
    return fmt::format(
        "the plan's bound of {} by kind of operator is not between {} and the "
        "one by operator, {}",
        off.by_kind.upper.step, off.least_step.value_or(0),
        off.by_operator.upper.step);
  }
  return std::nullopt;
}

// Checks the stated figures of the step without checkpointing, and the overhead
// over it.
BrokenRule FalseBaseline(const Profile& profile, const Plan& plan,
                         double cost_ms, const graph::Trace* trace) {
  const double step_ms = StepMs(profile);
  double overhead = step_ms > 0 ? cost_ms / step_ms : kNotStated;
  if (plan.streams) {
    const double before_ms = plan.streams->baseline_ms;
    const double added_ms = plan.streams->step_ms - before_ms;
    overhead = before_ms > 0 ? std::max(0.0, added_ms / before_ms) : kNotStated;
  }
  if (overhead >= 0 && IsFalse(plan.overhead, overhead)) {
    return Differs("overhead", plan.overhead, overhead);
  }
  if (plan.baseline.peak_bytes == kNotStated) return std::nullopt;
  MemoryOptions unsharded = plan.memory;
  unsharded.world_size = 1;
  const PlanEffect baseline =
      ComputeEffect(profile, {}, unsharded, "pareto", trace);
  if (IsOtherPeak(plan.baseline.peak_bytes, baseline.peak_bytes,
                  plan.memory.model)) {
    return Differs("baseline's peak in bytes", plan.baseline.peak_bytes,
                   baseline.peak_bytes);
  }
  if (!plan.baseline.peak_module.empty() &&
      !IsAtPeak(baseline, plan.baseline.peak_module)) {
    return Differs("baseline's peak module", plan.baseline.peak_module,
                   baseline.peak_module);
  }
  if (IsFalse(plan.baseline.runtime_ms, step_ms)) {
    return Differs("baseline's run-time in ms", plan.baseline.runtime_ms,
                   step_ms);
  }
  return std::nullopt;
}

// Returns the first false statement of the plan.
BrokenRule FalseStatement(const Profile& profile, const Plan& plan,
                          const PlanEffect& effect, const graph::Trace* trace) {
  const ModulesByName by_name = ByName(profile);
  for (const PlannedModule& planned_unit : plan.modules) {
    const Module& module = Lookup(by_name, planned_unit.fqn);
    if (auto broken = FalseMemoryBudget(planned_unit)) return broken;
    if (IsWhole(module, planned_unit, plan.memory)) {
      if (auto broken = FalseWholeUnit(*trace, plan, planned_unit)) {
        return broken;
      }
      continue;
    }
    if (auto broken = FalseUnitStatement(module, planned_unit, plan.tradeoff)) {
      return broken;
    }
  }
  if (auto broken = FalsePeak(plan, effect)) return broken;
  double cost_ms = effect.recompute_ms;
  if (plan.offload && trace != nullptr) {
    const std::optional<PlanOffload> actual = OffloadEffect(*trace, plan);
    if (auto broken = BrokenOffloadRule(*plan.offload, *actual)) return broken;
    cost_ms += actual->stall_ms;
  }
  if (plan.device && trace != nullptr) {
    if (auto broken = BrokenDeviceRule(*trace, plan)) return broken;
  }
  if (auto broken = FalseCost(plan, effect.recompute_ms, cost_ms)) {
    return broken;
  }
  if (auto broken = FalseAnySchedule(plan, effect.recompute_ms)) return broken;
  if (auto broken = FalseTimesOff(plan)) return broken;
  if (trace != nullptr) {
    if (auto broken = FalseHostTime(*trace, plan, cost_ms)) return broken;
    if (auto broken = FalseStreamTime(*trace, plan)) return broken;
  }
  return FalseBaseline(profile, plan, cost_ms, trace);
}

}  // namespace

std::optional<std::string> FirstBrokenRule(const Profile& profile,
                                           const Plan& plan,
                                           const PlanRules& rules,
                                           const graph::Trace* trace) {
  if (auto broken = BrokenUnitRules(profile, plan, rules)) return broken;
  const bool is_on_trace =
      trace != nullptr && plan.memory.model == MemoryModel::kTrace;
  if (is_on_trace) {
    const CallIndex index(*trace);
    const std::vector<graph::CheckpointedModule> units =
        CheckpointedModules(*trace, plan.modules);
    for (const graph::CheckpointedModule& unit : units) {
      if (auto broken = BrokenSkipRule(*trace, index, unit)) return broken;
    }
    if (auto broken = BrokenStateRule(*trace, index, units)) return broken;
  }
  const PlanEffect effect =
      ComputeEffect(profile, plan.modules, plan.memory, plan.tradeoff, trace);
  if (auto broken = BrokenBudget(plan, effect)) return broken;
  return FalseStatement(profile, plan, effect, trace);
}

}  // namespace acplan::problems
