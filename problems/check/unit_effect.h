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

// Ratios in double precision may lose as much over a model of so many bytes.
constexpr double ByteRounding(double model_bytes) {
  return 0.01 + 1e-14 * model_bytes;
}

using ModulesByName =
    std::unordered_map<std::string_view, const graph::Module*>;
// Refers to the profile.
ModulesByName ByName(const graph::Profile& profile);

// Throws InputError ("plan for another model?") for a name that is not there.
const graph::Module& Lookup(const ModulesByName& by_name,
                            const std::string& fqn);

// The nearest enclosing name for which `is_one_of` holds, segments not counted.
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

// All names around this one, the nearest first, segments of the profile among them.
std::vector<std::string> NamesAround(const ModulesByName& by_name,
                                     std::string_view fqn);

// Returns whether no known module is around this one.
bool IsRoot(const ModulesByName& by_name, const graph::Module& module);

double SumOfMemory(const graph::SacStatistics& sac);

// ACM of a ratio, and IA: what autograd keeps of it (docs/formulation.md).
double SacBytes(const graph::Module& module, std::string_view tradeoff);
double InternalBytes(const graph::Module& module, std::string_view tradeoff);

// What a unit does of which the effect is known on traces only, as one line:
// operators that are skipped, offloaded, or keep some of their results; nullopt for
// none.
std::optional<std::string> KnownOnTracesOnly(const PlannedModule& planned);

struct UnitEffect {
  double discarded_bytes = 0;
  double recompute_ms = 0;
};

// By the unit's operators, or by its ratio and the trade-off where it has none
// (ComputeEffect). Throws InputError as that does.
UnitEffect EffectOf(const graph::Module& module, const PlannedModule& planned,
                    std::string_view tradeoff);

}  // namespace acplan::problems
