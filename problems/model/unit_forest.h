#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "graph/profile/module_tree.h"
#include "graph/profile/profile.h"
#include "problems/model/module_problem.h"

namespace acplan::problems {

// The common part of the problems over units: forest, records, budget, and the
// modules that may be units at all.

// The warnings of a problem, one for each module type ("GPT.h.*.attn") and kind
// of complaint, with the number of its modules, the details of the first, and
// the bytes of all.
class WarningsByType {
 public:
  struct Entry {
    std::string fqn, type, text;
    int modules;
    int64_t bytes;

    // Returns "GPT.h.* (12 modules)", or the name of the only module.
    std::string Modules() const;
  };

  void Add(const std::string& fqn, const std::string& kind,
           const std::string& details = "", int64_t bytes = 0);
  const std::vector<Entry>& entries() const { return entries_; }
  std::vector<std::string> Lines() const;

 private:
  std::map<std::pair<std::string, std::string>, size_t> index_;
  std::vector<Entry> entries_;
};

struct UnitForest {
  ModuleProblem problem;  // without curves
  // Indexed by node: 1 if it is no leaf, is called and is not ruled out by ac_units or
  // fsdp_units, so that it may be a unit.
  std::vector<char> may_be_unit;
  std::vector<std::string> warnings;
  WarningsByType by_type;  // open for additions; listed after `warnings`

  std::vector<std::string> Warnings() const;  // all, a line each
};

// Builds the forest from all options except bound_by_forced_saves. Throws
// InputError under the conditions of BuildModuleProblem.
UnitForest BuildUnitForest(const graph::Profile& profile,
                           const graph::ModuleTree& tree,
                           const ModuleProblemOptions& options);

// Drops max_units if no set of candidates can exceed it.
void DropUselessLimit(ModuleProblem& problem);

}  // namespace acplan::problems
