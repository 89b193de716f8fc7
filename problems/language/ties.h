#pragma once

#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "graph/profile/profile.h"
#include "graph/profile/sac_statistics.h"
#include "graph/trace/simulation.h"
#include "graph/trace/trace.h"
#include "problems/language/language.h"

namespace acplan::problems {

// Which operators of units a language decides together.

// Returns whether a name matches one of the shell patterns.
bool MatchesAny(const std::string& name,
                const std::vector<std::string>& patterns);

// The statistics of modules whose operators a plan decides.
class SacOfModules {
 public:
  explicit SacOfModules(const graph::Profile& profile) {
    for (const graph::Module& module : profile.modules) {
      if (module.sac) sac_[module.fqn] = &*module.sac;
    }
  }

  const graph::SacStatistics* Find(const std::string& fqn) const {
    const auto entry = sac_.find(fqn);
    return entry == sac_.end() ? nullptr : entry->second;
  }

 private:
  std::unordered_map<std::string_view, const graph::SacStatistics*> sac_;
};

// Returns units in the form of a plan (PlannedUnitsOf).
std::vector<graph::CheckpointedModule> PlannedUnits(
    const graph::Trace& trace, const SacOfModules& sac_of_modules,
    std::vector<graph::CheckpointedModule> units);

// Returns why units must not run again: one of them draws random numbers that the language
// does not replay; nothing if none does.
std::optional<std::string> RandomRefusal(
    const graph::Trace& trace, const Language& language,
    const std::vector<graph::ModuleId>& units);

// The ties of one choice of units.
class Ties {
 public:
  Ties(const graph::Trace& trace, const SacOfModules& sac_of_modules,
       const Language& language, const std::vector<graph::ModuleId>& modules);

  // Returns the ties, whose ms is not set yet.
  std::vector<OperatorTie> Find() const;

  // Returns whether a set of names keeps the rules of every unit.
  bool MaySave(const OperatorTie& tie) const;

  // Returns the first of these rules that a set of names breaks, as a sentence about a unit;
  // "" if it keeps all.
  std::string BrokenRuleOf(const std::vector<std::string>& saved) const;

  // The names of all operators of the units.
  const std::set<std::string>& names() const { return names_; }

 private:
  struct Unit {
    graph::ModuleId module = {};
    const graph::SacStatistics* sac = nullptr;
    graph::OperatorGroups groups = {};
  };

  const graph::Trace& trace_;
  const Language& language_;
  std::vector<Unit> units_;
  std::set<std::string> names_;
  bool is_whole_ = false;  // a unit has no decisions
};

}  // namespace acplan::problems
