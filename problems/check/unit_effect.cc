#include "problems/check/unit_effect.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "graph/base/input_error.h"
#include "graph/profile/pareto_list.h"
#include "graph/profile/sac_statistics.h"
#include "graph/profile/tradeoff_curve.h"

namespace acplan::problems {

using graph::Module;
using graph::Profile;
using graph::SacStatistics;

namespace {

UnitEffect EffectOfOps(const Module& module,
                       const PlannedModule& planned_unit) {
  const auto mismatch = [&](const std::string& what) {
    return InputError(fmt::format("plan: {}: {} (plan for another model?)",
                                  planned_unit.fqn, what));
  };
  if (!module.sac)
    throw mismatch("operator decisions, but the profile has no operators");
  const SacStatistics& sac = *module.sac;
  const size_t n = sac.func_names.size();
  if (planned_unit.ops.size() != n) {
    throw mismatch(fmt::format("{} operators in the plan, {} in the profile",
                               planned_unit.ops.size(), n));
  }
  UnitEffect effect;
  double saved = 0;
  for (size_t k = 0; k < n; ++k) {
    const PlannedOp& op = planned_unit.ops[k];
    if (op.index != static_cast<int>(k) || op.name != sac.func_names[k]) {
      throw mismatch(
          fmt::format("operator {} is {} '{}' in the plan, '{}' in the "
                      "profile",
                      k, op.index, op.name, sac.func_names[k]));
    }
    if (op.Saves()) {
      saved += static_cast<double>(sac.memory[k]);
    } else if (op.RunsAgain()) {
      effect.recompute_ms += sac.runtimes[k];
    }
  }
  effect.discarded_bytes =
      std::min(static_cast<double>(module.act_fw_per_module),
               SumOfMemory(sac)) -
      saved;
  return effect;
}

// Returns the share of the SAC run-time according to the fit's largest segment.
double FitMs(const graph::TradeoffFit& fit, const PlannedModule& planned_unit) {
  double share = 0;
  for (size_t s = 0; s < fit.slopes.size(); ++s) {
    if (!fit.slopes[s] || !fit.intercepts[s]) {
      throw InputError(
          fmt::format("plan: {}: the profile's trade-off fit of this module is "
                      "null, so the "
                      "effect of a discard ratio is unknown",
                      planned_unit.fqn));
    }
    share = std::max(share, *fit.slopes[s] * planned_unit.discard_ratio +
                                *fit.intercepts[s]);
  }
  return share * fit.sac_runtime;
}

// Returns 1 - r. The plan states both r and 1 - r: where ACM is far above IA,
// the ratio is so near 1 that a double misses bytes, but 1 - r as stated does
// not.
double SavedShare(const PlannedModule& planned_unit) {
  const double share = 1 - planned_unit.discard_ratio;
  const bool is_same = std::abs(share - planned_unit.memory_budget) <= 0x1p-52;
  return is_same ? planned_unit.memory_budget : share;
}

// Interpolates between the policies at the corners of the Pareto list.
double HullMs(const SacStatistics& sac, const PlannedModule& planned_unit) {
  const graph::OperatorGroups groups = graph::GroupOperators(sac);
  if (!groups.contradiction.empty()) {
    throw InputError(fmt::format(
        "plan: {}: no policy satisfies all rules of its operators ({})",
        planned_unit.fqn, groups.contradiction));
  }
  const std::vector<graph::PolicyCost> hull = graph::ParetoHull(groups);
  const double saved = SavedShare(planned_unit) * SumOfMemory(sac);
  size_t k = 0;
  while (k < hull.size() && static_cast<double>(hull[k].saved_bytes) < saved) {
    ++k;
  }
  if (k == 0) return hull.front().recompute_ms;
  if (k == hull.size()) return hull.back().recompute_ms;
  const auto left_bytes = static_cast<double>(hull[k - 1].saved_bytes);
  const auto right_bytes = static_cast<double>(hull[k].saved_bytes);
  return hull[k - 1].recompute_ms +
         (saved - left_bytes) / (right_bytes - left_bytes) *
             (hull[k].recompute_ms - hull[k - 1].recompute_ms);
}

UnitEffect EffectOfRatio(const Module& module,
                         const PlannedModule& planned_unit,
                         std::string_view tradeoff) {
  UnitEffect effect;
  const double sac_bytes = SacBytes(module, tradeoff);
  effect.discarded_bytes =
      InternalBytes(module, tradeoff) - sac_bytes * SavedShare(planned_unit);
  if (tradeoff == "profile") {
    if (!module.torch_fit || module.torch_fit->slopes.empty()) {
      throw InputError(fmt::format(
          "plan: {}: the profile has no trade-off fit of this module, so "
          "the effect of a discard ratio is unknown",
          planned_unit.fqn));
    }
    effect.recompute_ms = FitMs(*module.torch_fit, planned_unit);
    return effect;
  }
  if (!module.sac) {
    throw InputError(fmt::format(
        "plan: {}: the profile has no operators of this module, so the effect "
        "of a discard ratio is unknown",
        planned_unit.fqn));
  }
  effect.recompute_ms =
      tradeoff == "fit" ? FitMs(graph::FitTradeoff(*module.sac), planned_unit)
                        : HullMs(*module.sac, planned_unit);
  return effect;
}

}  // namespace

ModulesByName ByName(const Profile& profile) {
  ModulesByName by_name;
  for (const Module& module : profile.modules) by_name[module.fqn] = &module;
  return by_name;
}

const Module& Lookup(const ModulesByName& by_name, const std::string& fqn) {
  const auto entry = by_name.find(fqn);
  if (entry == by_name.end()) {
    throw InputError(fmt::format(
        "plan: the profile has no module '{}' (plan for another model?)", fqn));
  }
  return *entry->second;
}

bool IsRoot(const ModulesByName& by_name, const Module& module) {
  return !NearestAbove(module.fqn, [&](std::string_view name) {
    return by_name.contains(name);
  });
}

std::vector<std::string> NamesAround(const ModulesByName& by_name,
                                     std::string_view fqn) {
  std::vector<std::string> names;
  std::string name(fqn);
  for (;;) {
    const auto module = by_name.find(name);
    const size_t dot = name.rfind('.');
    if (module != by_name.end() && !module->second->segment.empty()) {
      name = module->second->segment;
    } else if (dot != std::string::npos) {
      name = name.substr(0, dot);
    } else {
      return names;
    }
    names.push_back(name);
  }
}

double SumOfMemory(const SacStatistics& sac) {
  double sum = 0;
  for (const int64_t bytes : sac.memory) sum += static_cast<double>(bytes);
  return sum;
}

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

std::optional<std::string> KnownOnTracesOnly(
    const PlannedModule& planned_unit) {
  if (!planned_unit.offloaded_arguments.empty()) {
    return fmt::format(
        "{}: an argument is offloaded, an effect that is known on traces only",
        planned_unit.fqn);
  }
  for (const PlannedOp& op : planned_unit.ops) {
    const bool skips = op.decision == graph::OperatorDecision::kSkip;
    if (!skips && !op.Offloads() && !op.results) continue;
    return fmt::format(
        "{}: operator {} '{}' {}, an effect that is known on traces only",
        planned_unit.fqn, op.index, op.name,
        skips           ? "is skipped"
        : op.Offloads() ? "is offloaded"
                        : "keeps some of its results");
  }
  return std::nullopt;
}

UnitEffect EffectOf(const Module& module, const PlannedModule& planned_unit,
                    std::string_view tradeoff) {
  return planned_unit.ops.empty()
             ? EffectOfRatio(module, planned_unit, tradeoff)
             : EffectOfOps(module, planned_unit);
}

}  // namespace acplan::problems
