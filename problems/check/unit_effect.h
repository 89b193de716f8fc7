#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/profile/profile.h"
#include "problems/plan/plan.h"

namespace acplan::problems {

// Computes what one unit of a plan discards and recomputes, and finds modules by
// name.

// Returns the bytes that ratios in double precision may lose over a model of so
// many bytes.
constexpr double ByteRounding(double model_bytes) {
  return 0.01 + 1e-14 * model_bytes;
}

using ModulesByName =
    std::unordered_map<std::string_view, const graph::Module*>;
// Returns the profile's modules by name. The result refers to the profile.
ModulesByName ByName(const graph::Profile& profile);

// Throws InputError ("plan for another model?") for a name that the profile
// lacks.
const graph::Module& Lookup(const ModulesByName& by_name,
                            const std::string& fqn);

// Returns the nearest enclosing name for which `is_one_of` holds, segments not
// counted.
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

// Returns all names around this one, the nearest first, with the profile's
// segments among them.
std::vector<std::string> NamesAround(const ModulesByName& by_name,
                                     std::string_view fqn);

// Returns whether no known module is around this one.
bool IsRoot(const ModulesByName& by_name, const graph::Module& module);

double SumOfMemory(const graph::SacStatistics& sac);

// Returns ACM of a ratio's trade-off.
double SacBytes(const graph::Module& module, std::string_view tradeoff);
// Returns IA: the bytes of ACM that autograd keeps (docs/formulation.md).
double InternalBytes(const graph::Module& module, std::string_view tradeoff);

// Returns a complaint, as one line, about a unit whose effect is known on
// traces only, because it skips or offloads operators or keeps only some of
// their results; nullopt for other units.
std::optional<std::string> KnownOnTracesOnly(const PlannedModule& planned_unit);

struct UnitEffect {
  double discarded_bytes = 0;
  double recompute_ms = 0;
};

// Computes a unit's effect from its operators, or, if it has none, from its
// ratio and the trade-off (ComputeEffect). Throws InputError under the same
// conditions as ComputeEffect.
UnitEffect EffectOf(const graph::Module& module,
                    const PlannedModule& planned_unit,
                    std::string_view tradeoff);

}  // namespace acplan::problems
