#include "tests/problems/joint_profile_enumeration.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <utility>

#include "tests/problems/enumeration.h"
#include "tests/support/operator_rules.h"

namespace acplan::problems {

using graph::Module;
using graph::Profile;

namespace {

using ProfilePolicy = JointProfileEnumeration::Policy;
using Unit = JointProfileEnumeration::Unit;

constexpr double kWithoutBound = std::numeric_limits<double>::infinity();

bool IsWithin(const std::string& name, const std::string& ancestor) {
  return name.starts_with(ancestor + ".");
}

bool IsAmong(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// Returns the policies without those that another beats, most bytes last.
std::vector<ProfilePolicy> Unbeaten(std::vector<ProfilePolicy> policies) {
  std::ranges::sort(
      policies, [](const ProfilePolicy& a, const ProfilePolicy& b) {
        return a.bytes != b.bytes ? a.bytes > b.bytes : a.ms < b.ms;
      });
  std::vector<ProfilePolicy> unbeaten;
  for (const ProfilePolicy& policy : policies) {
    if (unbeaten.empty() || policy.ms < unbeaten.back().ms) {
      unbeaten.push_back(policy);
    }
  }
  std::ranges::reverse(unbeaten);
  return unbeaten;
}

std::vector<ProfilePolicy> PoliciesOf(const Module& module,
                                      const graph::OperatorPatterns& patterns,
                                      double held_bytes) {
  const graph::SacStatistics& sac = *module.sac;
  int64_t made_bytes = 0;
  for (const int64_t bytes : sac.memory) made_bytes += bytes;
  std::vector<ProfilePolicy> policies;
  test_support::ForEachLegalPolicy(
      sac, patterns, [&](const std::vector<char>& save) {
        int64_t discarded = std::min(module.act_fw_per_module, made_bytes);
        double ms = 0;
        for (size_t k = 0; k < save.size(); ++k) {
          if (save[k]) {
            discarded -= sac.memory[k];
          } else {
            ms += sac.runtimes[k];
          }
        }
        const double net = static_cast<double>(discarded) - held_bytes;
        if (net > 0) policies.push_back({net, ms});
      });
  return Unbeaten(std::move(policies));
}

// Calls `use` with every set of units that are not nested, ascending.
void ForEachSet(const JointProfileEnumeration& problem,
                const std::function<void(const std::vector<int>&)>& use) {
  std::vector<int> set;
  const std::function<void(int)> extend = [&](int next) {
    if (next == std::ssize(problem.units)) {
      use(set);
      return;
    }
    extend(next + 1);
    if (problem.max_units && std::ssize(set) >= *problem.max_units) return;
    for (const int other : problem.units[next].nested_with) {
      if (std::ranges::find(set, other) != set.end()) return;
    }
    set.push_back(next);
    extend(next + 1);
    set.pop_back();
  };
  extend(0);
}

// Returns the cost of the cheapest policies of a set that meet every record, by
// combining units in the order of time; kInf if none cost less than `below`.
double CheapestOfSet(const JointProfileEnumeration& problem,
                     const std::vector<int>& set, double budget, double below) {
  std::vector<ProfilePolicy> sums = {{0, 0}};
  size_t next = 0;
  for (size_t k = 0; k < problem.records.size(); ++k) {
    double missing = problem.records[k] - budget;
    for (const int u : set) {
      if (problem.units[u].contains[k]) missing += problem.units[u].held_bytes;
    }
    std::erase_if(sums, [&](const ProfilePolicy& sum) {
      return sum.bytes < missing || sum.ms >= below;
    });
    if (sums.empty()) return kWithoutBound;
    if (next < set.size() &&
        problem.units[set[next]].time == static_cast<int>(k)) {
      std::vector<ProfilePolicy> longer;
      for (const ProfilePolicy& policy : problem.units[set[next]].policies) {
        for (const ProfilePolicy& sum : sums) {
          longer.push_back({sum.bytes + policy.bytes, sum.ms + policy.ms});
        }
      }
      sums = Unbeaten(std::move(longer));
      ++next;
    }
  }
  double least = kWithoutBound;
  for (const ProfilePolicy& sum : sums) least = std::min(least, sum.ms);
  return least;
}

}  // namespace

double Unit::LeastMs(double bytes) const {
  for (const ProfilePolicy& policy : policies) {
    if (policy.bytes >= bytes) return policy.ms;
  }
  return kWithoutBound;
}

std::optional<double> JointProfileEnumeration::LeastMs(double budget) const {
  if (fixed_bytes > budget) return std::nullopt;
  double least = kWithoutBound;
  ForEachSet(*this, [&](const std::vector<int>& set) {
    least = std::min(least, CheapestOfSet(*this, set, budget, least));
  });
  if (least == kWithoutBound) return std::nullopt;
  return least;
}

double JointProfileEnumeration::LeastBudget() const {
  double least = kWithoutBound;
  ForEachSet(*this, [&](const std::vector<int>& set) {
    std::vector<std::pair<int, double>> chosen_units;
    for (const int u : set) {
      chosen_units.emplace_back(u, units[u].policies.back().bytes);
    }
    least = std::min(least, Peak(chosen_units));
  });
  return least;
}

double JointProfileEnumeration::Peak(
    const std::vector<std::pair<int, double>>& chosen_units) const {
  double peak = fixed_bytes;
  for (size_t k = 0; k < records.size(); ++k) {
    double bytes = records[k];
    for (const auto& [u, discarded] : chosen_units) {
      if (units[u].time < static_cast<int>(k)) bytes -= discarded;
      if (units[u].contains[k]) bytes += units[u].held_bytes;
    }
    peak = std::max(peak, bytes);
  }
  return peak;
}

JointProfileEnumeration JointEnumerationOf(
    const Profile& profile, const JointProfileEnumerationOptions& options) {
  // The records are those of the module problem.
  const Enumeration modules =
      EnumerationOf(profile, {.memory = options.memory});
  JointProfileEnumeration result;
  result.max_units = options.max_units;
  result.fixed_bytes = modules.fixed_bytes;
  for (const auto& record : modules.records) {
    result.records.push_back(record.bytes);
  }
  for (size_t t = 0; t < profile.order.fw_post.size(); ++t) {
    const std::string& fqn = profile.order.fw_post[t];
    const Module& module =
        *std::ranges::find(profile.modules, fqn, &Module::fqn);
    if (module.is_leaf || !module.sac) continue;
    if (!options.ac_units.empty() && !IsAmong(options.ac_units, fqn)) continue;
    if (std::ranges::any_of(options.fsdp_units, [&](const std::string& name) {
          return IsWithin(name, fqn);
        })) {
      continue;
    }
    Unit unit;
    unit.fqn = fqn;
    unit.time = static_cast<int>(t);
    if (options.memory.model == MemoryModel::kSnapshot) {
      unit.held_bytes = static_cast<double>(module.held_per_module);
    }
    unit.policies = PoliciesOf(module, options.patterns, unit.held_bytes);
    if (unit.policies.empty()) continue;
    for (const std::string& other : profile.order.fw_post) {
      unit.contains.push_back(other == fqn || IsWithin(other, fqn));
    }
    for (size_t u = 0; u < result.units.size(); ++u) {
      if (IsWithin(result.units[u].fqn, fqn) ||
          IsWithin(fqn, result.units[u].fqn)) {
        unit.nested_with.push_back(static_cast<int>(u));
      }
    }
    result.units.push_back(std::move(unit));
  }
  return result;
}

}  // namespace acplan::problems
